"""Topologies of one's own: what is read, and what is refused by the name of its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.models.topologies.networks import read_network
from loadmaster.models.topologies.topology import Link


def link(source: int, target: int, **more: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "gbps": 10.0, **more}


PAIR: dict[str, Any] = {"name": "pair", "node_of": [0, 0], "links": [link(0, 1, message_ns=700), link(1, 0)]}


def switched() -> nx.Graph:
    """Two GPUs at each of two switches, and a faster trunk between them."""
    graph = nx.Graph(name="two leaves")
    for rank in range(4):
        graph.add_node(rank, node=rank // 2)
        graph.add_edge(rank, "ab"[rank // 2], latency_ns=100, message_ns=20 + rank, gbps=50.0)
    graph.nodes["a"]["switch"] = graph.nodes["b"]["switch"] = True
    graph.add_edge("a", "b", latency_ns=300, gbps=100.0)
    return graph


def test_links_have_wires_of_their_own_unless_they_share() -> None:
    topology = read_network(PAIR)
    assert topology.links[0] == Link(0, 1, 0, 700, 10.0, (0,))
    assert topology.resources == ("wire 0->1", "wire 1->0")
    shared = read_network(PAIR | {"links": [link(0, 1, resources=["bus"]), link(1, 0, resources=["bus", "x"])]})
    assert shared.resources == ("bus", "x")
    assert [k.resources for k in shared.links] == [(0,), (0, 1)]
    by_place = PAIR | {"resources": ["bus"], "links": [link(0, 1, resources=[0]), link(1, 0, resources=[0])]}
    assert [k.resources for k in read_network(by_place).links] == [(0,), (0,)]


def test_a_file_reads_as_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(PAIR))
    assert read_network(path) == read_network(PAIR)


@pytest.mark.parametrize("edges", ["edges", "links"])
def test_ways_through_switches_hold_every_edge_on_them(edges: str) -> None:
    topology = read_network(nx.node_link_data(switched(), edges=edges))
    assert topology.name == "two leaves"
    assert topology.node_of == (0, 0, 1, 1)
    assert topology.switches == ((0, 1, 2, 3),)
    assert len(topology.links) == 12
    near, far = (topology.links[topology.link_between[ends]] for ends in ((0, 1), (1, 2)))
    assert (near.latency_ns, near.message_ns, near.gbps, near.switch) == (200, 21, 50.0, 0)
    assert (far.latency_ns, far.message_ns, far.gbps, far.switch) == (500, 22, 50.0, 0)
    assert {topology.resources[r] for r in near.resources} == {"wire 0->a", "wire a->1"}
    assert {topology.resources[r] for r in far.resources} == {"wire 1->a", "wire a->b", "wire b->2"}


def test_directed_edges_go_one_way_and_the_nearer_switch_is_taken() -> None:
    graph = nx.DiGraph()
    graph.add_nodes_from([("x", {}), ("y", {})])
    for switch, latency_ns in (("slow", 900), ("fast", 10)):
        graph.add_node(switch, switch=True)
        graph.add_edge("x", switch, latency_ns=latency_ns, gbps=1.0)
        graph.add_edge(switch, "y", latency_ns=latency_ns, gbps=1.0)
    graph.add_edge("y", "x", gbps=2.0)
    topology = read_network(nx.node_link_data(graph, edges="edges"))
    assert {(k.source, k.target): k.latency_ns for k in topology.links} == {(0, 1): 20, (1, 0): 0}
    assert {topology.resources[r] for r in topology.links[0].resources} == {"wire x->fast", "wire fast->y"}


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.data())
def test_graphs_of_gpus_keep_their_edges(count: int, data: st.DataObject) -> None:
    """Any graph is read edge by edge."""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(chosen, gbps=3.0, message_ns=5)
    document = nx.node_link_data(graph, edges="edges")
    topology = read_network(document)
    assert {(k.source, k.target) for k in topology.links} == set(chosen)
    assert len(topology.resources) == len(chosen)


THREE = [link(a, b) for a, b in ((0, 1), (1, 0))]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (PAIR | {"speed": 1}, "speed"),
        (PAIR | {"links": [link(0, 1, gbps=0.0), link(1, 0)]}, "topology.links[0].gbps"),
        (PAIR | {"links": [link(0, 1, gbps=-3.0), link(1, 0)]}, "topology.links[0].gbps"),
        (PAIR | {"links": [link(0, 1, latency_ns=-1), link(1, 0)]}, "topology.links[0].latency_ns"),
        (PAIR | {"links": [link(0, 1, message_ns=-1), link(1, 0)]}, "topology.links[0].message_ns"),
        (PAIR | {"links": [link(0, 1), link(1, 2)]}, "topology.links[1].target"),
        (PAIR | {"links": [link(0, 1), link(1, 1)]}, "topology.links[1].target"),
        (PAIR | {"links": [link(0, 1), link(1, 0, wires=2)]}, "links[1].wires"),
        (PAIR | {"links": [link(0, 1), link(1, 0, resources=[0])]}, "links[1].resources"),
        (PAIR | {"links": [link(0, 1), link(1, 0, switch=0)]}, "links[1].switch"),
        (PAIR | {"resources": ["a", "a"]}, "resources[1]"),
        (PAIR | {"node_of": []}, "node_of"),
    ],
)
def test_bad_networks_are_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        read_network(document)
    assert refused.value.field == field


def test_links_that_do_not_connect_are_a_network_too() -> None:
    """What of a collective they do not carry, its plan says; a broadcast along a line needs no way back."""
    for node_of, ends in (([0] * 4, [(0, 1), (1, 0), (2, 3), (3, 2)]), ([0] * 3, [(0, 1), (1, 2)]), ([0] * 2, [])):
        topology = read_network({"node_of": node_of, "links": [link(a, b) for a, b in ends]})
        assert [(k.source, k.target) for k in topology.links] == ends
        assert topology.rank_count == len(node_of)


def graph_document(**more: Any) -> dict[str, Any]:
    document: dict[str, Any] = nx.node_link_data(switched(), edges="edges")
    return document | more


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (graph_document(edges=[{"source": 0, "target": "c", "gbps": 1.0}]), "edges[0].target"),
        (graph_document(edges=[{"source": 0, "target": 1, "gbps": 0.0}]), "edges[0].gbps"),
        (graph_document(edges=[{"source": 0, "target": 1, "gbps": 1.0, "latency_ns": -5}]), "edges[0].latency_ns"),
        (graph_document(edges=[{"source": 0, "target": 1}]), "edges[0].gbps"),
        (graph_document(edges=[{"source": 0, "target": 1, "gbps": 1.0, "colour": 1}]), "edges[0].colour"),
        (graph_document(edges=["0-1"]), "edges[0]"),
        (graph_document(edges=[{"source": [0], "target": 1, "gbps": 1.0}]), "edges[0].source"),
        (graph_document(graph=[]), "graph"),
        (graph_document(links=[]), "links"),
        (graph_document(vertices=[]), "vertices"),
        (graph_document(nodes={"a": 1}), "nodes"),
        (graph_document(edges=None), "edges"),
        (graph_document(nodes=[{"id": 0}, {"id": 0}]), "nodes"),
        (graph_document(nodes=[{"id": 0, "kind": "gpu"}]), "nodes[0].kind"),
        (graph_document(multigraph=True), "multigraph"),
        ({"nodes": [{"id": "a", "switch": True}], "edges": []}, "nodes"),
    ],
)
def test_bad_graphs_are_refused(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        read_network(document)
    assert refused.value.field == field
