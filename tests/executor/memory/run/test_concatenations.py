"""Concatenations nested in eights: the same numbers, and on a GPU one kernel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.executor.memory.run.lowering import SMALL_BYTES, nest_concatenations
from tests.executor.memory.run.test_segments import through_inductor

aten = torch.ops.aten


def concatenation(shapes, dimension, device="cuda"):
    """A graph that puts together inputs of these shapes."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{place}") for place in range(len(shapes))]
    made = graph.call_function(aten.cat.default, (inputs, dimension))
    with FakeTensorMode():
        for node, shape in zip(inputs, shapes, strict=True):
            node.meta["val"] = torch.empty(shape, device=device)
        made.meta["val"] = torch.cat([node.meta["val"] for node in inputs], dimension)
    graph.output((made,))
    return graph


def widths(graph):
    """How many tensors each concatenation takes."""
    return [len(node.args[0]) for node in graph.find_nodes(op="call_function", target=aten.cat.default)]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=150), dimension=st.integers(-2, 1))
def test_nested_they_are_the_same_tensor(sizes, dimension):
    shapes = [(size, 2) if dimension in (0, -2) else (2, size) for size in sizes]
    graph = concatenation(shapes, dimension)
    nest_concatenations(graph)
    graph.lint()
    assert max(widths(graph)) <= 8
    parts = [torch.randn(shape) for shape in shapes]
    (made,) = fx.GraphModule(nn.Module(), graph)(*parts)
    torch.testing.assert_close(made, torch.cat(parts, dimension), rtol=0, atol=0)


def test_eight_stay_as_they_are():
    graph = concatenation([(2,)] * 8, 0)
    nest_concatenations(graph)
    assert widths(graph) == [8]


def test_large_ones_are_made_where_they_go():
    graph = concatenation([(SMALL_BYTES // 32, 1)] * 9, 0)
    nest_concatenations(graph)
    assert widths(graph) == [9]


def test_on_a_cpu_each_would_be_copied_twice():
    graph = concatenation([(2,)] * 9, 0, "cpu")
    nest_concatenations(graph)
    assert widths(graph) == [9]


@pytest.mark.gpu
def test_on_a_gpu_eight_parts_of_a_product_take_one_kernel():
    x, y = torch.randn(8, 40, 16, device="cuda"), torch.randn(8, 16, 16, device="cuda")

    def stacked(x, y):
        products = torch.bmm(x, y)
        return [torch.stack([products[:, place].mul(place) for place in reversed(range(40))])]

    run = through_inductor(make_fx(stacked)(x, y), x, y)
    run([x, y])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        (made,) = run([x, y])
        torch.cuda.synchronize()
    torch.testing.assert_close(made, stacked(x, y)[0])
    assert sum("triton" in event.name for event in profile.events()) == 5
