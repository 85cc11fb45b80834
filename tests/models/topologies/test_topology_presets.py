"""Named topologies: the machines as their makers describe them, and the grids."""

from __future__ import annotations

import networkx as nx
import pytest

from loadmaster.errors import InputError
from loadmaster.models.collective.symmetry import holders_of
from loadmaster.models.topologies.presets import (
    DGX1_DOUBLE,
    DGX1_SINGLE,
    Preset,
    catalogue,
    fat_tree,
    preset,
    ring,
    torus,
)
from loadmaster.models.topologies.topology import Topology


def graph(topology: Topology) -> nx.DiGraph:
    found = nx.DiGraph()
    found.add_nodes_from(range(topology.rank_count))
    found.add_edges_from((k.source, k.target) for k in topology.links)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_every_entry_builds_as_it_says(entry: Preset) -> None:
    for nodes in {entry.nodes[0], entry.nodes[1], entry.nodes[min(15, len(entry.nodes) - 1)]}:
        topology = preset(entry.name, nodes)
        assert topology.rank_count == nodes * entry.ranks_per_node
        assert nx.is_strongly_connected(graph(topology))
        assert all(holders_of(topology))
        assert entry.title


def test_the_dgx1_graph_has_six_nvlinks_per_gpu() -> None:
    wires = {pair: 2 for pair in DGX1_DOUBLE} | {pair: 1 for pair in DGX1_SINGLE}
    assert len(wires) == 16
    for gpu in range(8):
        assert sum(count for pair, count in wires.items() if gpu in pair) == 6
        assert sum(gpu in pair for pair in wires) == 4
    topology = preset("ndv2", 1)
    gbps = {(k.source, k.target): k.gbps for k in topology.links}
    assert gbps[0, 1] == gbps[1, 0] == pytest.approx(2 * gbps[0, 2])


@pytest.mark.parametrize(("name", "sharing"), [("ndv2", 8), ("dgx1", 2), ("dgx2", 2), ("hgx-h200", 1)])
def test_nics_are_shared_as_the_hardware_shares_them(name: str, sharing: int) -> None:
    topology = preset(name, 3)
    out = [r for r, what in enumerate(topology.resources) if what.startswith("nic") and what.endswith("out")]
    holders = holders_of(topology)
    for resource in out:
        assert len({topology.links[k].source for k in holders[resource]}) == sharing
    assert len(out) * sharing == topology.rank_count


def test_rails_connect_equal_gpus_only() -> None:
    topology = preset("hgx-h100", 4)
    crossing = [(k.source, k.target) for k in topology.links if topology.crosses(k)]
    assert sorted(crossing) == [(a, b) for a in range(32) for b in range(32) if a != b and a % 8 == b % 8]


def test_a_switch_has_a_port_in_and_out_for_each_gpu() -> None:
    topology = preset("dgx2", 1)
    assert len(topology.links) == 16 * 15
    assert len(topology.resources) == 2 * 16
    assert all(len(k) == 15 for k in holders_of(topology))
    assert topology.switches == (tuple(range(16)),)


def test_published_machines_are_busy_for_alpha_and_the_others_are_pipelined() -> None:
    for name, nvlink, network in (("ndv2", 700, 1700), ("dgx2", 700, 1700)):
        links = preset(name, 2).links
        assert {(k.message_ns, k.latency_ns) for k in links} == {(nvlink, 0), (network, 0)}
    assert {k.message_ns for k in preset("hgx-h200", 2).links} == {0}
    # Table 5.1: 46, 8 and 106 us per MB beside alpha.
    assert {k.occupancy_ns(2**20) for k in preset("ndv2", 2).links} == {700 + 46_000, 700 + 23_000, 1700 + 106_000}
    assert {k.occupancy_ns(2**20) for k in preset("dgx2", 2).links} == {700 + 8_000, 1700 + 106_000}


@pytest.mark.parametrize("sides", [(2,), (5,), (2, 2), (3, 4), (2, 3, 4), (1, 4)])
def test_a_torus_is_the_periodic_grid(sides: tuple[int, ...]) -> None:
    grid = nx.grid_graph(dim=[s for s in reversed(sides)], periodic=True).to_directed()
    grid.remove_edges_from(list(nx.selfloop_edges(grid)))
    rank = {vertex: n for n, vertex in enumerate(sorted(grid, key=lambda v: v if isinstance(v, tuple) else (v,)))}
    expected = {(rank[a], rank[b]) for a, b in grid.edges}
    assert {(k.source, k.target) for k in torus(sides).links} == expected


def test_a_ring_has_a_wire_each_way() -> None:
    assert len(ring(6).links) == len(ring(6).resources) == 12
    assert len(ring(2).links) == 2


def test_a_fat_tree_shares_uplinks_by_target() -> None:
    topology = fat_tree(8, leaf_ranks=4, uplinks=2)
    names = {(k.source, k.target): {topology.resources[r] for r in k.resources} for k in topology.links}
    assert names[0, 1] == {"nic 0 out", "nic 1 in"}
    assert names[0, 5] == {"nic 0 out", "nic 5 in", "leaf 0 up 1", "leaf 1 down 1"}
    assert names[3, 7] & names[0, 5] == {"leaf 0 up 1", "leaf 1 down 1"}
    assert not names[3, 6] & names[0, 5]


@pytest.mark.parametrize(
    ("name", "nodes", "field"),
    [("ndv3", 1, "topology"), ("ndv2", 0, "nodes"), ("ndv2", 17, "nodes"), ("torus", 7, "nodes"), ("ring", 1, "nodes")],
)
def test_unknown_names_and_numbers_are_refused(name: str, nodes: int, field: str) -> None:
    with pytest.raises(InputError) as refused:
        preset(name, nodes)
    assert refused.value.field == field


def test_grids_that_mean_nothing_are_refused() -> None:
    for sides in ((0, 2), (1,), (1, 1)):
        with pytest.raises(InputError, match="sides"):
            torus(sides)
    with pytest.raises(InputError, match="uplinks"):
        fat_tree(4, uplinks=0)
