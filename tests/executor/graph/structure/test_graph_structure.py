"""What a graph is made of and what it refuses, against plain loops over its edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.executor.graph.structure.graph import Graph

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def library() -> Graph:
    return Graph.from_relations({WRITES: ([0, 1, 1], [0, 0, 2]), CITES: ([2, 0], [1, 1])}, {"author": 2, "paper": 3})


@st.composite
def typed_edges(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int, int]]]:
    """(nodes, relations, edges as (source, relation, destination))."""
    nodes, relations = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, st.integers(0, relations - 1), node), max_size=14))
    return nodes, relations, edges


def made(nodes: int, relations: int, edges: list[tuple[int, int, int]]) -> Graph:
    source, kind, destination = (list(part) for part in zip(*edges, strict=True)) if edges else ([], [], [])
    return Graph(source, destination, relation=kind, relations=relations, node_count=nodes)


@settings(max_examples=40)
@given(typed_edges())
def test_edges_are_stored_by_relation_and_say_where_they_were_given(drawn: Any) -> None:
    graph = made(*drawn)
    edges = sorted(enumerate(drawn[2]), key=lambda pair: pair[1][1])
    assert graph.source.tolist() == [e[0] for _, e in edges]
    assert graph.relation.tolist() == [e[1] for _, e in edges]
    assert graph.destination.tolist() == [e[2] for _, e in edges]
    order = list(range(len(edges))) if graph.edge_order is None else graph.edge_order.tolist()
    assert order == [i for i, _ in edges]
    sizes = [sum(e[1] == r for _, e in edges) for r in range(drawn[1])]
    assert [b - a for a, b in zip(graph.relation_ptr, graph.relation_ptr[1:], strict=False)] == sizes


@settings(max_examples=40)
@given(typed_edges())
def test_rows_and_columns_hold_every_edge_once_in_order(drawn: Any) -> None:
    graph = made(*drawn)
    for compressed, rows, others in (
        (graph.csc(), graph.destination, graph.source),
        (graph.csr(), graph.source, graph.destination),
    ):
        want = sorted(range(graph.num_edges()), key=lambda e: (int(rows[e]), e))
        assert compressed.edge_ids().tolist() == want
        assert compressed.neighbour.tolist() == [int(others[e]) for e in want]
        assert compressed.ptr.tolist() == [int((rows < i).sum()) for i in range(drawn[0] + 1)]
    assert graph.in_degrees().tolist() == [sum(e[2] == v for e in drawn[2]) for v in range(drawn[0])]
    assert graph.out_degrees().tolist() == [sum(e[0] == v for e in drawn[2]) for v in range(drawn[0])]


@settings(max_examples=40)
@given(typed_edges())
def test_pairs_are_the_distinct_ends_with_relations(drawn: Any) -> None:
    graph = made(*drawn)
    pairs = graph.destination_pairs()
    each = list(zip(graph.relation.tolist(), graph.destination.tolist(), strict=True))
    want = sorted(set(each))
    assert list(zip(pairs.relation.tolist(), pairs.node.tolist(), strict=True)) == want
    assert pairs.node.numel() == len(want)
    for i, pair in enumerate(want):
        own = slice(int(pairs.edges.ptr[i]), int(pairs.edges.ptr[i + 1]))
        edges = [e for e, other in enumerate(each) if other == pair]
        assert pairs.edges.edge_ids()[own].tolist() == edges
        assert pairs.edges.neighbour[own].tolist() == [int(graph.source[e]) for e in edges]


def test_nodes_of_all_types_are_numbered_one_type_after_the_other() -> None:
    graph = library()
    assert graph.source.tolist() == [0, 1, 1, 4, 2]
    assert graph.destination.tolist() == [2, 2, 4, 3, 3]
    assert [ids.tolist() for ids in graph.edges("writes")] == [[0, 1, 1], [0, 0, 2]]
    assert graph.num_nodes("paper") == 3 and graph.num_nodes() == 5
    assert graph.num_edges(CITES) == 2 and graph.num_edges() == 5
    assert graph.in_degrees(relation="writes").tolist() == [2, 0, 1]
    assert graph.out_degrees([1], relation="writes").tolist() == [2]


def test_counts_are_what_edges_name_where_none_are_given() -> None:
    assert Graph([0, 5], [1, 2]).num_nodes() == 6
    assert Graph.from_relations({WRITES: ([4], [1])}).schema.source_counts == (5, 2)


def test_ids_are_int32_where_they_fit_and_int64_where_they_are_wanted_or_needed() -> None:
    assert Graph([0], [1]).id_dtype == torch.int32
    assert Graph([0], [1], id_dtype=torch.int64).csc().neighbour.dtype == torch.int64
    assert Graph([0], [2**31 + 3]).id_dtype == torch.int64
    with pytest.raises(InputError, match="too small"):
        Graph([0], [2**31 + 3], id_dtype=torch.int32)
    with pytest.raises(InputError, match="holds no ids"):
        Graph([0], [1], id_dtype=torch.float32)


def test_a_graph_without_nodes_or_edges_is_a_graph() -> None:
    graph = Graph([], [])
    assert graph.num_nodes() == 0 and graph.num_edges() == 0 and graph.csc().ptr.tolist() == [0]
    assert Graph([], [], node_count=3).in_degrees().tolist() == [0, 0, 0]
    assert Graph.from_relations({WRITES: ([], [])}, {"author": 1, "paper": 0}).num_edges("writes") == 0


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Graph([0, 3], [1, 0], node_count=3), "source"),
        (lambda: Graph([0, 1], [1, -1], node_count=3), "destination"),
        (lambda: Graph([0, 1], [1]), "destination"),
        (lambda: Graph([0.5], [1]), "source"),
        (lambda: Graph([[0]], [[1]]), "source"),
        (lambda: Graph(["a"], [1]), "source"),
        (lambda: Graph([0], [1], node_count=-1), "node_counts"),
        (lambda: Graph([0], [1], node_count=2, node_counts={"a": 2}), "node_count"),
        (lambda: Graph([0], [1], relation=[0, 1]), "relation"),
        (lambda: Graph([0], [1], relation=[3], relations=2), "relation"),
        (lambda: Graph([0], [1], relations=2), "relation"),
        (lambda: Graph([0], [1], relation=[0], relations=0), "relations"),
        (lambda: Graph([0], [1], node_counts={"a": 1, "b": 1}), "relations"),
        (lambda: Graph([0], [0], node_counts={"a": 1, "b": 1}, relations=[("a", "r", "b")]), "destination of"),
        (lambda: Graph([0], [1], relations=[("_N", "x")]), "relations"),
        (lambda: Graph.from_relations({WRITES: ([2], [0])}, {"author": 2, "paper": 1}), "writes"),
        (lambda: Graph.from_relations({WRITES: ([0], [0, 1])}), "destination"),
        (lambda: Graph.from_relations({WRITES: ([0], [0])}, {"author": 2}), "relations"),
        (lambda: library().edges["cited"], "relation"),
        (lambda: library().nodes["venue"], "node type"),
        (lambda: library().relation_adjacency(), "relation"),
        (lambda: library().in_degrees([9], relation="cites"), "nodes"),
    ],
)
def test_what_is_no_graph_is_refused(build: Any, field: str) -> None:
    with pytest.raises(InputError) as refused:
        build()
    assert field in str(refused.value)


def test_data_have_a_row_for_each_node_or_edge() -> None:
    graph = library()
    graph.nodes["paper"].data["h"] = torch.ones(3, 2)
    graph.edata["w"] = {WRITES: torch.ones(3), CITES: torch.zeros(2)}
    assert graph.ndata["h"].keys() == {"paper"} and graph.edges["cites"].data["w"].tolist() == [0, 0]
    for wrong in (torch.ones(2, 2), torch.tensor(1.0), [1, 2, 3]):
        with pytest.raises(InputError, match="node data"):
            graph.nodes["paper"].data["h"] = wrong
    with pytest.raises(InputError, match="is not there"):
        graph.nodes["paper"].data["x"]
    with pytest.raises(InputError, match="no type"):
        graph.ndata["h"] = {"venue": torch.ones(3)}
    with pytest.raises(InputError, match="which type"):
        graph.ndata["h"] = torch.ones(5)
    del graph.ndata["h"]
    assert "h" not in graph.nodes["paper"].data


def test_a_local_scope_leaves_data_as_they_were() -> None:
    graph = Graph([0], [1])
    graph.ndata["h"] = torch.ones(2)
    with graph.local_scope():
        graph.ndata["h"] = torch.zeros(2)
        graph.edata["w"] = torch.zeros(1)
    assert graph.ndata["h"].tolist() == [1, 1] and "w" not in graph.edata


def test_the_reverse_shares_structure_and_data() -> None:
    graph = library()
    graph.nodes["paper"].data["h"] = torch.ones(3)
    graph.csc()
    turned = graph.reverse()
    assert turned.relations[0] == ("paper", "writes", "author")
    assert turned.csr() is graph.csc() and turned.source is graph.destination
    assert turned.nodes["paper"].data["h"] is graph.nodes["paper"].data["h"]


def test_another_device_gets_structure_data_and_formats() -> None:
    graph = library()
    graph.nodes["paper"].data["h"] = torch.ones(3)
    graph.csc()
    moved = graph.to("meta")
    assert moved.device.type == "meta" and moved.csc().ptr.device.type == "meta"
    assert moved.nodes["paper"].data["h"].device.type == "meta" and graph.to("cpu") is graph
    moved.nodes["paper"].data["x"] = torch.ones(3, device="meta")
    with pytest.raises(InputError, match="device"):
        moved.nodes["paper"].data["x"] = torch.ones(3)


def test_filters_give_ids_of_what_is_true() -> None:
    graph = Graph([0, 1, 2], [1, 2, 0])
    graph.ndata["h"] = torch.tensor([1.0, -1.0, 2.0])
    assert graph.filter_nodes(lambda nodes: nodes.data["h"] > 0).tolist() == [0, 2]
    assert graph.filter_edges(lambda edges: edges.src["h"] * edges.dst["h"] > 0).tolist() == [2]
    with pytest.raises(InputError, match="predicate"):
        graph.filter_nodes(lambda nodes: nodes.data["h"])
