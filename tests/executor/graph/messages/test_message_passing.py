"""Message passes as a user calls them: built-in and own functions, parts of a graph, several relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import loadmaster.executor.graph.messages.functions as fn
from loadmaster.errors import InputError
from loadmaster.executor.graph.messages.sparse import edge_softmax
from loadmaster.executor.graph.messages.user_functions import EdgeBatch, NodeBatch, buckets, maskable
from loadmaster.executor.graph.structure.graph import Graph
from tests.executor.graph.messages.message_cases import feature, graphs, naive_reduction, same_values_and_gradients


def scaled(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"m": edges.src["h"] * edges.data["w"] + edges.dst["h"]}


def spread(nodes: NodeBatch) -> dict[str, Tensor]:
    return {"o": nodes.mailbox["m"].sum(1) * nodes.data["h"]}


@maskable
def largest_and_count(nodes: NodeBatch) -> dict[str, Tensor]:
    assert nodes.mask is not None
    lowest = nodes.mailbox["m"].masked_fill(~nodes.mask[..., None], -torch.inf)
    return {"top": lowest.amax(1), "count": nodes.mask.sum(1)}


def filled(graph: Graph) -> tuple[Tensor, Tensor]:
    graph.ndata["h"], graph.edata["w"] = feature(graph, "u", (2,), 1), feature(graph, "e", (1,), 2)
    return graph.ndata["h"], graph.edata["w"]


@settings(max_examples=30)
@given(graphs())
def test_own_functions_see_the_messages_of_each_node(graph: Graph) -> None:
    h, w = filled(graph)
    if graph.num_edges() == 0:
        with pytest.raises(InputError, match="no node has messages"):
            graph.update_all(scaled, spread)
        return
    graph.update_all(scaled, spread)
    messages = h[graph.source.long()] * w + h[graph.destination.long()]
    want = naive_reduction(graph, messages, "sum") * h
    same_values_and_gradients(graph.ndata["o"], want, [h, w])


@settings(max_examples=30)
@given(graphs(20))
def test_padded_buckets_give_what_exact_ones_would(graph: Graph) -> None:
    h, _ = filled(graph)
    if graph.num_edges():
        graph.update_all(fn.copy_u("h", "m"), largest_and_count)
        want = naive_reduction(graph, h[graph.source.long()], "max")
        torch.testing.assert_close(graph.ndata["top"], want)
        assert graph.ndata["count"].tolist() == graph.in_degrees().tolist()


@given(st.lists(st.integers(0, 40), min_size=1), st.booleans())
def test_every_node_with_messages_is_in_one_bucket_that_is_wide_enough(degrees: list[int], padded: bool) -> None:
    found = buckets(torch.tensor(degrees), padded)
    assert sorted(n for nodes, _ in found for n in nodes.tolist()) == [i for i, d in enumerate(degrees) if d]
    for nodes, width in found:
        own = [degrees[n] for n in nodes.tolist()]
        assert max(own) == width and (width <= 1.25 * min(own) if padded else min(own) == width)


def test_an_order_of_messages_is_that_of_edges() -> None:
    graph = Graph([2, 0, 1, 0], [1, 1, 1, 2])
    graph.ndata["h"] = torch.tensor([[1.0], [2.0], [3.0]])
    graph.update_all(fn.copy_u("h", "m"), lambda nodes: {"first": nodes.mailbox["m"][:, 0]})
    assert graph.ndata["first"].view(-1).tolist() == [0, 3, 1]


def test_a_recurrent_network_can_reduce() -> None:
    torch.manual_seed(0)
    graph = Graph([0, 1, 2, 0], [1, 2, 1, 0])
    cell = nn.LSTM(2, 3, batch_first=True)
    graph.ndata["h"] = torch.randn(3, 2)
    graph.update_all(fn.copy_u("h", "m"), lambda nodes: {"o": cell(nodes.mailbox["m"])[1][0][0]})
    want = cell(graph.ndata["h"][[0, 2]][None])[1][0][0]
    torch.testing.assert_close(graph.ndata["o"][1:2], want)


def test_own_messages_can_have_a_built_in_reduction_and_the_reverse() -> None:
    graph = Graph([0, 1, 1], [1, 0, 1])
    filled(graph)
    graph.update_all(lambda edges: {"m": 2 * edges.src["h"]}, fn.mean("m", "a"))
    graph.update_all(fn.copy_u("h", "m"), lambda nodes: {"b": 2 * nodes.mailbox["m"].mean(1)})
    torch.testing.assert_close(graph.ndata["a"], graph.ndata["b"])


def test_apply_sees_results_beside_the_data_of_nodes() -> None:
    graph = Graph([0], [1])
    graph.ndata["h"] = torch.tensor([[2.0], [3.0]])
    graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "o"), lambda n: {"o": n.data["o"] + n.data["h"]})
    assert graph.ndata["o"].tolist() == [[2.0], [5.0]]
    graph.apply_nodes(lambda n: {"h": -n.data["h"]})
    assert graph.ndata["h"].tolist() == [[-2.0], [-3.0]]


def test_values_of_edges_can_be_set_for_some_of_them() -> None:
    graph = Graph([0, 1], [1, 0])
    graph.ndata["h"] = torch.tensor([[2.0], [3.0]])
    graph.apply_edges(fn.u_add_v("h", "h", "s"))
    assert graph.edata["s"].tolist() == [[5.0], [5.0]]
    graph.apply_edges(fn.copy_u("h", "s"), edges=[1])
    assert graph.edata["s"].tolist() == [[5.0], [3.0]]
    graph.apply_edges(lambda edges: {"d": edges.src["h"] - edges.dst["h"]})
    assert graph.edata["d"].tolist() == [[-1.0], [1.0]]


@settings(max_examples=30)
@given(graphs(), st.data())
def test_pull_updates_the_nodes_that_pull_alone(graph: Graph, data: st.DataObject) -> None:
    h, w = filled(graph)
    nodes = data.draw(st.lists(st.integers(0, graph.num_nodes() - 1), unique=True))
    graph.ndata["o"] = torch.full((graph.num_nodes(), 2), 7.0, dtype=torch.float64)
    graph.pull(nodes, fn.u_mul_e("h", "w", "m"), fn.sum("m", "o"))
    want = naive_reduction(graph, h[graph.source.long()] * w, "sum")
    rest = [i for i in range(graph.num_nodes()) if i not in nodes]
    torch.testing.assert_close(graph.ndata["o"][nodes], want[nodes])
    assert graph.ndata["o"][rest].eq(7).all()


@settings(max_examples=30)
@given(graphs(), st.data())
def test_push_sends_along_the_edges_of_those_that_push(graph: Graph, data: st.DataObject) -> None:
    h, _ = filled(graph)
    nodes = data.draw(st.lists(st.integers(0, graph.num_nodes() - 1), unique=True))
    graph.ndata["o"] = torch.full((graph.num_nodes(), 2), 7.0, dtype=torch.float64)
    graph.push(nodes, fn.copy_u("h", "m"), fn.max("m", "o"))
    edges = [e for e in range(graph.num_edges()) if int(graph.source[e]) in nodes]
    some = Graph(graph.source[edges], graph.destination[edges], node_count=graph.num_nodes())
    want = naive_reduction(some, h[some.source.long()], "max")
    want[some.in_degrees() == 0] = 7
    torch.testing.assert_close(graph.ndata["o"], want)


def test_chosen_edges_update_their_destinations() -> None:
    graph = Graph([0, 1, 2], [1, 1, 0])
    graph.ndata["h"] = torch.tensor([[1.0], [2.0], [4.0]])
    graph.send_and_recv([1], fn.copy_u("h", "m"), fn.sum("m", "o"))
    assert graph.ndata["o"].tolist() == [[0.0], [2.0], [0.0]]
    graph.send_and_recv([], fn.copy_u("h", "m"), fn.sum("m", "o"))
    assert graph.ndata["o"].tolist() == [[0.0], [2.0], [0.0]]


def library() -> Graph:
    writes, cites, none = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "knows", "author")
    edges = {writes: ([0, 1, 1], [0, 0, 2]), cites: ([2, 0], [0, 1]), none: ([], [])}
    graph = Graph.from_relations(edges, {"author": 2, "paper": 3})
    graph.nodes["author"].data["h"] = torch.tensor([[1.0], [2.0]])
    graph.nodes["paper"].data["h"] = torch.tensor([[10.0], [20.0], [30.0]])
    return graph


@pytest.mark.parametrize(
    ("how", "want"),
    [
        ("sum", [[33], [10], [2]]),
        ("mean", [[16.5], [5], [1]]),
        ("max", [[30], [10], [2]]),
        ("min", [[3], [0], [0]]),
        ("stack", [[[3], [30]], [[0], [10]], [[2], [0]]]),
        (lambda parts: parts[0] - sum(parts[1:]), [[-27], [-10], [2]]),
    ],
)
def test_relations_are_reduced_across(how: Any, want: list[Any]) -> None:
    graph = library()
    each = (fn.copy_u("h", "m"), fn.sum("m", "o"))
    graph.multi_update_all({"writes": each, "cites": each, "knows": each}, how)
    assert graph.nodes["paper"].data["o"].tolist() == want
    assert graph.nodes["author"].data["o"].abs().sum() == 0


def test_a_relation_without_edges_is_left_out_under_own_reductions() -> None:
    graph = library()
    own = (fn.copy_u("h", "m"), lambda nodes: {"o": nodes.mailbox["m"].sum(1)})
    graph.multi_update_all({"writes": own, "knows": own}, "sum", lambda nodes: {"o": -nodes.data["o"]})
    assert graph.nodes["paper"].data["o"].tolist() == [[-3], [0], [-2]]
    assert "o" not in graph.nodes["author"].data
    with pytest.raises(InputError, match="reduce nothing"):
        graph.multi_update_all({"knows": own}, "sum")


def plain() -> Graph:
    graph = Graph([0, 1], [1, 0])
    graph.ndata["h"] = torch.ones(2, 1)
    return graph


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (lambda g: g.update_all(fn.copy_u("x", "m"), fn.sum("m", "o")), "is not there"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), fn.sum("n", "o")), "is no message"),
        (lambda g: g.update_all(lambda e: {"m": e.src["h"]}, fn.sum("n", "o")), "is no message"),
        (lambda g: g.update_all("h", fn.sum("n", "o")), "is no function"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), "sum"), "is no function"),
        (lambda g: g.update_all(lambda e: e.src["h"], fn.sum("m", "o")), "returned no dictionary"),
        (lambda g: g.update_all(lambda e: {"m": e.src["h"][:1]}, fn.sum("m", "o")), "another number of rows"),
        (lambda g: g.update_all(fn.copy_u("h", "m"), lambda n: {"o": n.mailbox["m"][:1]}), "another number of rows"),
        (lambda g: g.pull([5], fn.copy_u("h", "m"), fn.sum("m", "o")), "names no node"),
        (lambda g: g.send_and_recv([2], fn.copy_u("h", "m"), fn.sum("m", "o")), "names no edge"),
        (lambda g: g.multi_update_all({"_E": (fn.copy_u("h", "m"), fn.sum("m", "o"))}, "most"), "is unknown"),
        (lambda g: edge_softmax(g, torch.ones(3)), "no row for each edge"),
        (lambda g: edge_softmax(g, torch.ones(2, dtype=torch.int64)), "floating-point"),
        (lambda g: edge_softmax(g, torch.ones(2), norm_by="both"), "norm_by"),
        (lambda g: edge_softmax(g, torch.ones(2, device="meta")), "are not on"),
    ],
)
def test_what_does_not_fit_is_refused(run: Callable[[Graph], None], found: str) -> None:
    with pytest.raises(InputError, match=found):
        run(plain())


@settings(max_examples=30)
@given(graphs(), st.sampled_from(("dst", "src")))
def test_softmax_is_that_of_the_edges_of_each_node(graph: Graph, norm_by: Any) -> None:
    scores = feature(graph, "e", (2, 2), 5)
    rows = graph.destination if norm_by == "dst" else graph.source
    want = torch.zeros_like(scores)
    for node in range(graph.num_nodes()):
        own = (rows == node).nonzero().view(-1)
        want = want.index_copy(0, own, scores[own].softmax(0))
    same_values_and_gradients(edge_softmax(graph, scores, norm_by=norm_by), want, [scores])


def test_softmax_takes_scores_of_any_size() -> None:
    graph = Graph([0, 1, 2], [0, 0, 1])
    made = edge_softmax(graph, torch.tensor([1e4, -1e4, -1e30]))
    assert made.tolist() == [1, 0, 1]
    graph = Graph([0, 1, 2], [0, 0, 1], relation=[1, 0, 1])
    assert edge_softmax(graph, torch.zeros(3)).tolist() == [0.5, 0.5, 1]


@pytest.mark.parametrize("relations", [1, 2])
def test_a_graph_that_is_evaluated_first_can_be_trained_on(relations: int) -> None:
    graph = Graph([0, 1, 2], [1, 2, 0], relation=[i % relations for i in range(3)], relations=relations)

    def summed(h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = h
            graph.update_all(fn.copy_u("h", "m"), fn.max("m", "o"), relation=0)
            scores = edge_softmax(graph, graph.ndata["h"][:, 0].repeat(3)[: graph.num_edges(0)], relation=0)
            return graph.ndata["o"].sum() + scores.square().sum()

    h = torch.randn(3, 2, requires_grad=True)
    with torch.inference_mode():
        expected = summed(h)
    found = summed(h)
    found.backward()
    assert torch.equal(found, expected) and h.grad is not None
