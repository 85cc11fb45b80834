"""Built-in functions give the values and gradients of messages made one by one: property tests in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import loadmaster.executor.graph.messages.functions as fn
from loadmaster.errors import InputError
from loadmaster.executor.graph.kernels import plain
from loadmaster.executor.graph.messages import sparse
from loadmaster.executor.graph.messages.sparse import sddmm, spmm
from loadmaster.executor.graph.structure.graph import Graph
from tests.executor.graph.messages.message_cases import (
    DOT_SHAPES,
    SHAPES,
    feature,
    graphs,
    naive_messages,
    naive_reduction,
    same_values_and_gradients,
)

WHERES = tuple(itertools.product("uev", repeat=2))
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small graphs take their edges in several chunks."""
    for module in (plain, sparse):
        monkeypatch.setattr(module, "CHUNK_NUMBERS", 8)


@settings(max_examples=60)
@given(
    graphs(),
    st.sampled_from(("add", "sub", "mul", "div")),
    st.sampled_from(WHERES),
    st.sampled_from(SHAPES),
    st.sampled_from(("sum", "mean", "max", "min", "prod")),
    seeds,
)
def test_two_operands_reduced_to_nodes(graph, operator, where, shapes, reduce, seed) -> None:
    left, right = (feature(graph, w, s, seed + i) for i, (w, s) in enumerate(zip(where, shapes, strict=True)))
    operands = (where[0], left), (where[1], right)
    got = spmm(graph.adjacency, operator, *operands, reduce)
    want = naive_reduction(graph, naive_messages(graph, operator, *operands), reduce)
    same_values_and_gradients(got, want, [left, right])


@settings(max_examples=25)
@given(graphs(), st.sampled_from("uev"), st.sampled_from(("sum", "mean", "max", "min", "prod")), seeds)
def test_a_copied_operand_reduced_to_nodes(graph, where, reduce, seed) -> None:
    value = feature(graph, where, (2, 2), seed)
    got = spmm(graph.adjacency, "copy", (where, value), None, reduce)
    want = naive_reduction(graph, naive_messages(graph, "copy", (where, value), None), reduce)
    same_values_and_gradients(got, want, [value])


@settings(max_examples=40)
@given(graphs(), st.sampled_from(("add", "sub", "mul", "div")), st.sampled_from(WHERES), st.sampled_from(SHAPES), seeds)
def test_two_operands_as_values_of_edges(graph, operator, where, shapes, seed) -> None:
    left, right = (feature(graph, w, s, seed + i) for i, (w, s) in enumerate(zip(where, shapes, strict=True)))
    operands = (where[0], left), (where[1], right)
    got = sddmm(graph.adjacency, operator, *operands)
    same_values_and_gradients(got, naive_messages(graph, operator, *operands), [left, right])


@settings(max_examples=25)
@given(graphs(), st.sampled_from(WHERES), st.sampled_from(DOT_SHAPES), st.sampled_from((None, "sum", "max")), seeds)
def test_dot_products_of_edges_and_of_nodes(graph, where, shapes, reduce, seed) -> None:
    left, right = (feature(graph, w, s, seed + i) for i, (w, s) in enumerate(zip(where, shapes, strict=True)))
    operands = (where[0], left), (where[1], right)
    want = naive_messages(graph, "dot", *operands)
    if reduce is None:
        same_values_and_gradients(sddmm(graph.adjacency, "dot", *operands), want, [left, right])
    else:
        got = spmm(graph.adjacency, "dot", *operands, reduce)
        same_values_and_gradients(got, naive_reduction(graph, want, reduce), [left, right])


@settings(max_examples=6)
@given(graphs(4), st.sampled_from((("u", "e"), ("v", "u"))), st.sampled_from(("mul", "div")))
def test_sums_have_second_derivatives(graph, where, operator) -> None:
    left, right = (feature(graph, w, s, 3) for w, s in zip(where, ((2, 2), (2, 1)), strict=True))

    def run(x: Tensor, y: Tensor) -> Tensor:
        return spmm(graph.adjacency, operator, (where[0], x), (where[1], y), "sum")

    assert torch.autograd.gradgradcheck(run, (left, right))


def test_max_says_that_it_has_no_second_derivative() -> None:
    graph = Graph([0, 1], [1, 1])
    h, w = torch.rand(2, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)
    made = spmm(graph.adjacency, "mul", ("u", h), ("e", w), "max").sum()
    (first,) = torch.autograd.grad(made, h, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated again"):
        first.sum().backward()


def test_gradients_of_a_product_are_right_at_zeros() -> None:
    graph = Graph([0, 1, 2, 0, 1], [0, 0, 0, 1, 1])
    h = torch.tensor([[0.0], [2.0], [3.0]], dtype=torch.float64, requires_grad=True)
    spmm(graph.adjacency, "copy", ("u", h), None, "prod").sum().backward()
    assert h.grad is not None and h.grad.tolist() == [[2.0 * 3.0 + 2.0], [0.0], [0.0]]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_a_node_without_messages_gets_zero(reduce: str) -> None:
    for graph in (Graph([0], [1], node_count=3), Graph([], [], node_count=3), Graph([], [])):
        made = spmm(graph.adjacency, "copy", ("u", -torch.ones(graph.num_nodes(), 2)), None, reduce)
        assert made[graph.in_degrees() == 0].abs().sum() == 0 and made.shape == (graph.num_nodes(), 2)


def test_max_and_min_answer_nan_for_nan_as_pytorch_does() -> None:
    graph = Graph([0, 1, 2], [0, 0, 1])
    h = torch.tensor([[1.0], [torch.nan], [-torch.inf]])
    for reduce in ("max", "min"):
        made = spmm(graph.adjacency, "copy", ("u", h), None, reduce)
        assert made[0].isnan().all() and made[1].item() == -torch.inf


def test_numbers_of_half_precision_are_summed_in_float32() -> None:
    graph = Graph(torch.arange(4096), torch.zeros(4096, dtype=torch.int64))
    ones = torch.ones(4096, 1, dtype=torch.bfloat16)
    made = spmm(graph.adjacency, "copy", ("u", ones), None, "sum")
    assert made.dtype == torch.bfloat16 and made[0].item() == 4096
    mixed = spmm(graph.adjacency, "mul", ("u", ones), ("e", torch.ones(4096, 1)), "sum")
    assert mixed.dtype == torch.float32


def test_integers_can_be_copied_to_edges_and_not_be_reduced() -> None:
    graph = Graph([1, 0], [0, 1])
    assert sddmm(graph.adjacency, "copy", ("u", torch.tensor([5, 7]))).tolist() == [7, 5]
    with pytest.raises(InputError, match="floating-point"):
        spmm(graph.adjacency, "copy", ("u", torch.tensor([5, 7])), None, "sum")


@pytest.mark.parametrize(
    ("left", "right", "operator", "found"),
    [
        (torch.ones(3, 2), torch.ones(2, 2), "mul", "feature at u"),
        (torch.ones(2, 2), torch.ones(3, 2), "mul", "feature at e"),
        (torch.ones(2, 2), torch.ones(2, 3), "mul", "joined"),
        (torch.ones(2, 2), torch.ones(2, 1), "dot", "last dimension"),
        (torch.tensor(1.0), torch.ones(2), "mul", "feature at u"),
        (torch.ones(2, 2, device="meta"), torch.ones(2, 2), "mul", "is not on cpu"),
    ],
)
def test_features_that_do_not_fit_are_refused(left: Tensor, right: Tensor, operator: Any, found: str) -> None:
    with pytest.raises(InputError, match=found):
        spmm(Graph([0, 1], [1, 0]).adjacency, operator, ("u", left), ("e", right), "sum")


def test_every_built_in_function_has_the_name_of_what_it_does() -> None:
    for left, right in WHERES:
        for operator in ("add", "sub", "mul", "div", "dot"):
            if left != right:
                message = getattr(fn, f"{left}_{operator}_{right}")("a", "b", "m")
                assert message == fn.BuiltinMessage(operator, (left, "a"), (right, "b"), "m")
    assert fn.copy_u("a", "m").left == ("u", "a") and fn.copy_e("a", "m").left == ("e", "a")
    for name in ("sum", "mean", "max", "min", "prod"):
        assert getattr(fn, name)("m", "h") == fn.BuiltinReduce(name, "m", "h")


class Attention(nn.Module):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, h: Tensor, w: Tensor) -> Tensor:
        graph = self.graph
        scores = sddmm(graph.adjacency, "dot", ("u", h), ("v", h)) * w
        return spmm(graph.adjacency, "mul", ("u", h.relu()), ("e", scores), "mean")


def test_compiled_functions_have_no_break_and_the_same_gradients() -> None:
    graph = Graph([0, 1, 2, 0], [1, 2, 0, 0]).create_formats_()
    model = Attention(graph)
    h, w = torch.randn(3, 4, requires_grad=True), torch.rand(4, 1, requires_grad=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    same = [torch.autograd.grad(run(h, w).square().sum(), (h, w)) for run in (model, compiled)]
    torch.testing.assert_close(same[1], same[0])


@pytest.mark.slow
def test_compiled_functions_make_formats_outside_what_is_compiled() -> None:
    graph, h = Graph([0, 1, 2, 0], [1, 2, 0, 0]), torch.randn(3, 4)

    def run(graph: Graph, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = h
            graph.update_all(fn.copy_u("h", "m"), fn.max("m", "o"))
            return graph.ndata["o"]

    compiled = torch.compile(run, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(graph, h), run(Graph(*graph.edges()), h))


def test_operators_pass_the_checks_of_pytorch() -> None:
    graph = Graph([0, 1, 2, 0], [1, 2, 0, 0])
    matrix = graph.adjacency.matrix(reverse=True)
    h, w = torch.randn(3, 4, requires_grad=True), torch.rand(4, 2, requires_grad=True)
    for reduce in ("sum", "max"):
        given = (h, w, None, *matrix, f"u.full mul e.outer; {reduce}; 2 x 2")
        torch.library.opcheck(torch.ops.loadmaster.spmm.default, given)
    given = (h, h, None, *matrix, "u.full mul v.full; inner; 2 x 2")
    torch.library.opcheck(torch.ops.loadmaster.sddmm.default, given)
    scores = (w, *matrix[:4], matrix.source, matrix.destination, matrix.counts)
    torch.library.opcheck(torch.ops.loadmaster.edge_softmax.default, scores)


def test_autocast_and_dispatch_modes_see_operators() -> None:
    graph = Graph([0, 1], [1, 0])
    layer = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        made = spmm(graph.adjacency, "mul", ("u", layer(torch.ones(2, 4))), ("e", torch.ones(2, 1)), "sum")
    made.sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32
