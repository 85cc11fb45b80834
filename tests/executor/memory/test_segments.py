"""Cutting a staged graph changes nothing but where it is cut."""

from __future__ import annotations

import random
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from loadmaster.executor.memory.backends import eager
from loadmaster.executor.memory.segments import STAGE, chain, cut, is_staged

aten = torch.ops.aten


def random_graph(seed: int, size: int, stages: int) -> fx.GraphModule:
    """A random graph of additions and products over two inputs, its nodes spread over stages in order."""
    draw = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    numbers = sorted(draw.randrange(1, stages + 1) for _ in range(size))
    recomputes = [draw.random() < 0.5 for _ in range(stages + 1)]
    for number in numbers:
        op = draw.choice([aten.add.Tensor, aten.mul.Tensor])
        node = graph.call_function(op, (draw.choice(values), draw.choice(values[-4:])))
        node.meta[STAGE] = (number, recomputes[number])
        values.append(node)
    graph.output((values[-1], None, draw.choice(values), values[-1]))
    return fx.GraphModule(torch.nn.Module(), graph)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 25), stages=st.integers(1, 6))
def test_segments_compute_what_the_graph_computes(seed, size, stages):
    module = random_graph(seed, size, stages)
    x, y = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    expected = module(x, y)
    segments = cut(module)
    assert is_staged(module)
    assert sum(len(s.module.graph.find_nodes(op="call_function", target=aten.add.Tensor)) for s in segments) == len(
        module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    )
    arguments = [x, y]
    got = chain(module, segments, [eager(s.module, ()) for s in segments])(arguments)
    assert arguments == []
    for g, e in zip(got, expected, strict=True):
        assert (g is None) == (e is None)
        assert g is None or torch.equal(g, e)


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_segment_begins_where_something_is_recomputed_and_values_die_in_time(recomputes):
    graph = fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_function(aten.exp.default, (x,))
    first.meta[STAGE] = (1, True)
    second = graph.call_function(aten.sin.default, (first,))
    second.meta[STAGE] = (2, recomputes)
    third = graph.call_function(aten.cos.default, (second,))
    third.meta[STAGE] = (3, True)
    graph.output((third,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    segments = cut(module)
    assert len(segments) == (3 if recomputes else 2)
    alive: list[bool] = []
    value = torch.randn(3)
    reference = weakref.ref(value)

    def watch(run):
        def watched(arguments):
            result = run(arguments)
            alive.append(reference() is not None)
            return result

        return watched

    run = chain(module, segments, [watch(eager(s.module, ())) for s in segments])
    arguments = [value]
    del value
    run(arguments)
    assert not any(alive)
