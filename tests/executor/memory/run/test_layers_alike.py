"""A graph is cut where it repeats itself, computes what it computed, and one of the segments alike is compiled."""

from __future__ import annotations

import itertools
import operator
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from loadmaster.executor import apply
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import capture
from loadmaster.executor.memory.run import backends
from loadmaster.executor.memory.run.backends import eager, inductor
from loadmaster.executor.memory.run.segments import chain, cut, described, repeated_pieces
from tests.executor.memory.schedules import plan, schedule

aten = torch.ops.aten
WIDTH = 4
STEPS = ("product", "sin", "add", "view")


class Graph:
    """A graph over one matrix that is written operator by operator."""

    def __init__(self) -> None:
        self.made = fx.Graph()
        self.x = self.made.placeholder("x")

    def call(self, op, *args) -> fx.Node:
        return self.made.call_function(op, args)

    def product(self, value: fx.Node) -> fx.Node:
        return self.call(aten.mm.default, value, self.x)

    def block(self, value: fx.Node) -> fx.Node:
        """Of a residual network: what is added is read at its end and at its beginning."""
        inner = self.product(self.call(aten.tanh.default, value))
        return self.call(aten.add.Tensor, value, self.product(self.call(aten.sin.default, inner)))

    def module(self, *results: fx.Node) -> fx.GraphModule:
        self.made.output(results)
        module = fx.GraphModule(nn.Module(), self.made)
        FakeTensorProp(module, FakeTensorMode()).propagate(torch.randn(WIDTH, WIDTH))
        return module


def pieces_of(module: fx.GraphModule) -> list[list[str]]:
    """The names of what is called, piece by piece."""
    run = [n for n in module.graph.nodes if n.op == "call_function"]
    return [[n.name for n in p] for p in repeated_pieces(run)]


def nothing_in_vain(module: fx.GraphModule, segments) -> None:
    """What a segment makes is read by a later one, or returned; each value is made once."""
    made = [name for segment in segments for name in segment.makes]
    assert len({*made}) == len(made)
    read = {n.name for n in module.graph.output_node().all_input_nodes}
    for segment in reversed(segments):
        assert {*segment.makes} <= read
        read |= {*segment.reads}


def same_numbers(module: fx.GraphModule) -> None:
    x = torch.randn(WIDTH, WIDTH)
    segments = cut(module)
    nothing_in_vain(module, segments)
    got = chain(module, segments, [eager(s.module, ()) for s in segments])([x])
    for have, want in zip(got, module(x), strict=True):
        assert torch.equal(have, want)


def test_layers_are_cut_where_products_begin():
    graph = Graph()
    value = graph.call(aten.exp.default, graph.x)
    for _ in range(4):
        value = graph.block(value)
    module = graph.module(value)
    pieces = pieces_of(module)
    # tanh is read by a product, the sum by tanh and the next sum: before the product nothing is fused across.
    assert [p[0].partition("_")[0] for p in pieces] == ["exp", "mm", "mm", "mm", "mm"]
    assert [len(p) for p in pieces] == [2, 5, 5, 5, 4]
    same_numbers(module)


def test_what_does_not_repeat_itself_is_not_cut():
    graph = Graph()
    value = graph.x
    for op in (aten.exp, aten.sin, aten.cos, aten.tanh):
        value = graph.product(graph.call(op.default, value))
    assert len(pieces_of(graph.module(value))) == 1


def test_repeated_elementwise_operators_stay_in_one_kernel():
    graph = Graph()
    value = graph.x
    for _ in range(20):
        value = graph.call(aten.sin.default, graph.call(aten.exp.default, value))
    assert len(pieces_of(graph.module(value))) == 1


def test_stages_of_a_network_are_cut_each_by_its_own_period():
    graph = Graph()
    value = graph.x
    for _ in range(4):
        value = graph.block(value)
    for _ in range(3):
        value = graph.product(graph.call(aten.cos.default, graph.product(graph.call(aten.exp.default, value))))
    module = graph.module(value)
    lengths = [len(p) for p in pieces_of(module)]
    assert lengths.count(5) >= 3 and lengths.count(4) >= 2
    same_numbers(module)


def test_a_view_is_made_anew_where_it_is_read():
    graph = Graph()
    turned = graph.call(aten.t.default, graph.call(aten.exp.default, graph.x))
    value = graph.x
    for _ in range(4):
        value = graph.call(aten.add.Tensor, graph.product(graph.product(graph.call(aten.sin.default, value))), turned)
    module = graph.module(value)
    segments = cut(module)
    assert len(segments) > 3
    assert not {"t"} & {name for s in segments for name in (*s.reads, *s.makes)}
    same_numbers(module)


def test_halves_that_all_layers_read_are_not_handed_over():
    graph = Graph()
    both = graph.call(aten.split.Tensor, graph.call(aten.exp.default, graph.x), WIDTH // 2)
    halves = [graph.call(operator.getitem, both, n) for n in (1, 0)]  # as rotary embeddings: cosines and sines
    value = graph.x
    for _ in range(4):
        turned = graph.call(aten.add.Tensor, value, graph.call(aten.cat.default, halves))
        value = graph.product(graph.product(graph.call(aten.sin.default, turned)))
    module = graph.module(value)
    assert len(cut(module)) > 3
    same_numbers(module)


def test_several_results_stay_with_what_makes_them():
    graph = Graph()
    value = graph.x
    for _ in range(4):
        both = graph.call(aten.sort.default, value)
        first = graph.call(operator.getitem, both, 0)
        value = graph.product(graph.call(aten.sin.default, graph.product(first)))
    module = graph.module(value)
    assert all("sort" not in "".join(p[-1]) for p in pieces_of(module))
    same_numbers(module)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(STEPS), max_size=6), max_size=3), st.integers(1, 5))
def test_pieces_are_the_run_and_compute_the_same(blocks, times):
    graph = Graph()
    value = earlier = graph.x
    for block, _ in itertools.product(blocks, range(times)):
        earlier = value
        for step in block:
            if step == "product":
                value = graph.product(value)
            elif step == "sin":
                value = graph.call(aten.sin.default, value)
            elif step == "add":
                value = graph.call(aten.add.Tensor, value, earlier)
            else:
                earlier = graph.call(aten.t.default, earlier)
    module = graph.module(value, earlier)
    names = [n.name for n in module.graph.nodes if n.op == "call_function"]
    assert [name for piece in pieces_of(module) for name in piece] == names
    same_numbers(module)


def test_operators_are_told_apart_by_constants_and_results_and_not_by_names():
    graph = Graph()
    sums = [graph.call(aten.sum.dim_IntList, graph.x, [dim]) for dim in (0, 0, 1)]
    same, other, third = map(described, graph.module(*sums).graph.find_nodes(op="call_function", target=sums[0].target))
    assert same == other != third


class Layers(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        layer = lambda: nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.slow
def test_layers_are_compiled_once_and_gradients_are_those_of_pytorch(monkeypatch):
    compiled = []
    original = backends._compile
    monkeypatch.setattr(backends, "_compile", lambda *given: compiled.append(given) or original(*given))

    def compilations(count: int) -> int:
        model, batch, loss = Layers(count), (torch.randn(16, 8), torch.randn(16, 8)), nn.MSELoss()
        problem = capture(model, batch, loss, costs=roofline("cpu"))
        step = apply(plan(problem, schedule(problem, lambda i: True)), model, loss)
        compiled.clear()
        for _ in range(2):
            model.zero_grad()
            step(*batch).backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])
        return len(compiled)

    assert compilations(12) == compilations(8) < 12


@pytest.mark.slow
def test_a_segment_like_another_one_does_not_write_over_what_lives_on():
    """Both add a product to what they read; of one it dies there, the other one's is returned."""
    graph = Graph()
    kept = graph.call(aten.exp.default, graph.x)
    value = kept
    for _ in range(4):
        value = graph.block(value)
    module = graph.module(kept, value)
    x = torch.randn(WIDTH, WIDTH)
    mode = FakeTensorMode()
    context = TracingContext(mode)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=None, static_input_indices=[])
    with tracing(context):
        run = inductor(module, [mode.from_tensor(x)])
    torch.testing.assert_close(run([x.clone()]), module(x))
