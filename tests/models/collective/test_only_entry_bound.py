"""What comes last into a node over its only entry: never above the best schedule, which is found by trying all."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import all_bounds
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.optimal_schedules import Search


@st.composite
def one_nic(draw: st.DrawFn) -> Topology:
    """Rank 0, a NIC to some of the 2 to 4 ranks of another node, and wires in that: a tree there and back, or more."""
    count = 1 + draw(st.integers(2, 4))
    joined = [(r, draw(st.integers(1, r - 1))) for r in range(2, count)]
    ends = {(a, b) for r, up in joined for a, b in ((r, up), (up, r))}
    rest = [(a, b) for a, b in product(range(1, count), repeat=2) if a != b and (a, b) not in ends]
    ends |= set(draw(st.lists(st.sampled_from(rest), max_size=2))) if rest else set()
    latency_ns, costs = draw(st.sampled_from([0, 4])), st.sampled_from([(0, 5), (5, 0), (3, 2), (0, 20)])
    links = [Link(a, b, *draw(costs), draw(st.sampled_from([1.0, 2.0])), (k,)) for k, (a, b) in enumerate(sorted(ends))]
    for rank in sorted(draw(st.sets(st.integers(1, count - 1), min_size=1))):
        links.append(Link(0, rank, latency_ns, *draw(st.sampled_from([(20, 1.0), (7, 1.0), (0, 2.0)])), (len(ends),)))
    return Topology("one nic", (0,) + (1,) * (count - 1), tuple(links), tuple(map(str, range(len(ends) + 1))))


def to_all(topology: Topology, size_bytes: int, count: int) -> Instance:
    return Instance(topology, count * (Chunk(size_bytes, (0,), tuple(range(topology.rank_count))),))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(one_nic(), st.sampled_from([2, 10, 40]), st.integers(1, 3))
def test_never_above_the_best_schedule(topology: Topology, size_bytes: int, count: int) -> None:
    """Nor is that of divisible chunks, of the same and of the chunks cut in two."""
    found = to_all(topology, size_bytes, count)
    for tried, divisible in ((found, (False, True)), (to_all(topology, size_bytes // 2, 2 * count), (True,))):
        search = Search(tried, limit=2500)
        if search.best_ns is not None:
            assert check(tried, search.sends).ok
            for of in divisible:
                assert all(bound.ns <= search.best_ns for bound in all_bounds(found, divisible=of))
