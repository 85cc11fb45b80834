"""The throughput bound: the worst of all cuts, on known machines the known optimum, and never above a schedule."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective import proof
from loadmaster.models.collective.bounds import NEVER
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.problem import Collective
from loadmaster.models.collective.proof import throughput_bound_ns
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem, ring, switched


def bound(topology: Topology, collective: Collective, size_bytes: int, **more: object) -> int:
    found = problem(topology, collective, size_bytes, **more)
    return throughput_bound_ns(instance_of(found, size_bytes, 1))


@st.composite
def wired(draw: st.DrawFn) -> Topology:
    """Up to five ranks in a ring with chords, each link a wire of its own."""
    count = draw(st.integers(2, 5))
    pairs = {(r, (r + 1) % count) for r in range(count)}
    rest = [(a, b) for a in range(count) for b in range(count) if a != b and (a, b) not in pairs]
    pairs |= set(draw(st.lists(st.sampled_from(rest), unique=True))) if rest else set()
    speeds = st.sampled_from([0.5, 1.0, 2.0, 3.0])
    links = tuple(Link(a, b, 0, 0, draw(speeds), (k,)) for k, (a, b) in enumerate(sorted(pairs)))
    return Topology("wired", (0,) * count, links, tuple(f"wire {k}" for k in range(len(links))))


def worst_cut(topology: Topology, chunks: tuple[Chunk, ...]) -> Fraction:
    """Over every set of ranks: bytes that it needs from outside, over the gbps into it."""
    worst = Fraction(0)
    for count in range(1, topology.rank_count):
        for inside in map(set, itertools.combinations(range(topology.rank_count), count)):
            for target in inside:
                need = sum(c.size_bytes for c in chunks if target in c.targets and not inside.intersection(c.sources))
                speed = sum(Fraction(k.gbps) for k in topology.links if k.target in inside and k.source not in inside)
                worst = max(worst, need / speed)
    return worst


@pytest.mark.slow
def test_without_flows_it_is_a_bound_still(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Topology, Collective]] = [
        (ring(4), "allgather"),
        (ring(4), "alltoall"),
        (preset("ndv2", 2), "allreduce"),
    ]
    exact = [bound(*case, 1 << 20) for case in cases]
    monkeypatch.setattr(proof, "MOST_FLOW_LINKS", 0)
    assert all(0 < bound(*case, 1 << 20) <= known for case, known in zip(cases, exact, strict=True))


@settings(max_examples=60, deadline=None)
@given(wired(), st.data())
def test_gathering_takes_what_the_worst_cut_takes(topology: Topology, data: st.DataObject) -> None:
    everyone = tuple(range(topology.rank_count))
    sizes = [data.draw(st.integers(1, 1000)) * 10 for _ in everyone]
    chunks = tuple(Chunk(size, (r,), everyone) for r, size in enumerate(sizes))
    assert throughput_bound_ns(Instance(topology, chunks)) == math.ceil(worst_cut(topology, chunks))
    one = tuple(Chunk(size, (r,), (0,)) for r, size in enumerate(sizes))
    assert throughput_bound_ns(Instance(topology, one)) == math.ceil(worst_cut(topology, one))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(wired(), st.sampled_from(["allgather", "reduce_scatter", "allreduce", "alltoall", "broadcast", "reduce"]))
def test_never_above_a_schedule(topology: Topology, collective: Collective) -> None:
    size_bytes = 60 * topology.rank_count
    found = instance_of(problem(topology, collective, size_bytes, root=0), size_bytes, 1)
    search = Search(found, limit=2000)
    if search.best_ns is not None:
        assert throughput_bound_ns(found) <= search.best_ns


@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_rings(ranks: int) -> None:
    """Both wires into a rank bring half of the others' pieces each; parts of sums go the same ways back."""
    topology = ring(ranks)
    assert bound(topology, "allgather", ranks * 100) == (ranks - 1) * 50
    assert bound(topology, "reduce_scatter", ranks * 100) == (ranks - 1) * 50
    assert bound(topology, "broadcast", 1000, root=0) == 500
    assert bound(topology, "allreduce", ranks * 100) == (ranks - 1) * 100


def test_alltoall_on_a_ring_goes_its_distances() -> None:
    """Distances 1, 1, 2, 2, 3 around six ranks: 9 steps of 100 bytes for each rank, on two wires for each."""
    assert bound(ring(6), "alltoall", 600) == 450


def test_switch_and_nics() -> None:
    assert bound(switched(1, 8), "allgather", 8 * 800) == 700
    # 4 NICs of 1 GB/s bring 4 x 800 bytes into each of two nodes; 16 pairs of 800 bytes cross to it in AllToAll.
    assert bound(switched(2, 4, gbps=8.0), "alltoall", 8 * 800) == 3200
    # Of a rank's own port and NIC: 7 x 800 bytes at 9 GB/s; a node's: 4 x 800 at 4.
    assert bound(switched(2, 4, gbps=8.0), "allgather", 8 * 800) == 800


def test_sixteen_nodes_of_eight_take_what_their_nics_take() -> None:
    """15 x 8 pieces through 8 NICs of 50 GB/s."""
    size_bytes = 128 * 2**20
    assert bound(preset("hgx-h200", 16), "allgather", size_bytes) == math.ceil(15 * 2**20 / 50)


def test_what_cannot_be_reached_is_never() -> None:
    assert bound(switched(2, 2, nic=False), "allgather", 40) == NEVER
