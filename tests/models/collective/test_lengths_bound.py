"""Bounds by lengths: never above the best shares of ways, and near them wherever chunks have one target."""

from __future__ import annotations

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.bounds.lengths import lengths_ns, timed_lengths_ns
from loadmaster.models.collective.bounds.network import NEVER, Network
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models import cbc
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem, switched


def best_shares_ns(instance: Instance) -> float:
    """The maximum concurrent flow, written out: the least time in which all bytes fit, however they are shared out."""
    topology = instance.topology
    model = pulp.LpProblem("shares", pulp.LpMinimize)
    time = pulp.LpVariable("time", 0)
    model += time
    work = {r: [] for r in range(len(topology.resources))}
    for c, chunk in enumerate(instance.chunks):
        (source,), (target,) = chunk.sources, chunk.targets
        share = [pulp.LpVariable(f"x{c}_{k}", 0) for k in range(len(topology.links))]
        for rank in range(topology.rank_count):
            into = pulp.lpSum(share[k] for k in topology.in_links[rank])
            out = pulp.lpSum(share[k] for k in topology.out_links[rank])
            model += into - out == (rank == target) - (rank == source)
        for k, link in enumerate(topology.links):
            for r in link.resources:
                work[r].append(chunk.size_bytes / link.gbps * share[k])
    for terms in work.values():
        model += pulp.lpSum(terms) <= time
    least_ns = cbc.optimum(model)
    assert least_ns is not None
    return least_ns


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """3 to 5 ranks around a ring one way, with more links, of several speeds, some over a shared resource."""
    count = draw(st.integers(3, 5))
    pairs = {(r, (r + 1) % count) for r in range(count)}
    rest = [(a, b) for a in range(count) for b in range(count) if a != b and (a, b) not in pairs]
    pairs |= set(draw(st.lists(st.sampled_from(rest), unique=True)))
    links = []
    for k, (a, b) in enumerate(sorted(pairs)):
        held = (0, k + 1) if draw(st.booleans()) else (k + 1,)
        links.append(Link(a, b, 3, 2, draw(st.sampled_from([1.0, 2.0, 0.5])), held))
    return Topology("random", (0,) * count, tuple(links), tuple(f"r{r}" for r in range(len(links) + 1)))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(networks(), st.data())
def test_as_good_as_the_best_shares_of_ways(topology: Topology, data: st.DataObject) -> None:
    ranks = range(topology.rank_count)
    pairs = data.draw(st.lists(st.sampled_from([(a, b) for a in ranks for b in ranks if a != b]), min_size=1))
    chunks = tuple(Chunk(data.draw(st.integers(1, 9)) * 1000, (a,), (b,)) for a, b in pairs)
    instance = Instance(topology, chunks)
    best_ns = best_shares_ns(instance)
    found = lengths_ns(Network(instance))
    assert found <= best_ns + 1
    assert found >= 0.9 * best_ns


@pytest.mark.parametrize(
    ("ranks", "cut_bytes", "wires"), [(32, 16 * 16, 2 * 4), (64, 32 * 32, 2 * 8), (24, 12 * 12, 8)]
)
def test_a_torus_is_as_slow_as_the_cut_across_its_longer_side(ranks: int, cut_bytes: int, wires: int) -> None:
    """Half of the ranks send a piece to each of the other half, over the wires at both ends of a half."""
    piece = 390 * 100
    instance = instance_of(problem(preset("torus", ranks), "alltoall", ranks * piece), ranks * piece, 1)
    exact_ns = cut_bytes * piece / 390 / wires
    assert 0.999 * exact_ns <= lengths_ns(Network(instance)) <= exact_ns + 1


def test_the_last_message_is_on_its_way_when_all_links_are_idle() -> None:
    """A latency of 1000 ns, and nothing else, comes on top of the bytes."""
    size_bytes = 64 * 390 * 1000
    instance = instance_of(problem(preset("ring", 64), "alltoall", size_bytes), size_bytes, 1)
    bound = lower_bound(instance)
    assert bound.by == "lengths of ways" and bound.ns == 512 * 1000 + 1000


def test_a_link_that_relays_sends_twice() -> None:
    """AllToAll of a DGX-1: all links relay, 700 ns a message; what bandwidth needs comes on top of two of them."""
    network = Network(instance_of(problem(preset("dgx1", 1), "alltoall", 1 << 16), 1 << 16, 1))
    assert timed_lengths_ns(network) == 2 * 700 + lengths_ns(network)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(networks(), st.data())
def test_no_length_makes_a_bound_above_the_best_schedule(topology: Topology, data: st.DataObject) -> None:
    ranks = range(topology.rank_count)
    pairs = data.draw(st.lists(st.sampled_from([(a, b) for a in ranks for b in ranks if a != b]), min_size=1))
    sizes = st.sampled_from([1, 4, 10])
    instance = Instance(topology, tuple(Chunk(data.draw(sizes), (a,), (b,)) for a, b in pairs[:4]))
    search = Search(instance, limit=4000)
    assert search.best_ns is None or timed_lengths_ns(Network(instance)) <= search.best_ns


def test_where_there_is_no_way_there_is_no_schedule() -> None:
    instance = instance_of(problem(switched(2, 2, nic=False), "alltoall", 400), 400, 1)
    assert lengths_ns(Network(instance)) == timed_lengths_ns(Network(instance)) == NEVER
