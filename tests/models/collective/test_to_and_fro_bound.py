"""Parts to and fro: never above the end of messages that meet what it asks for, nor above the best schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.bounds import all_bounds
from loadmaster.models.collective.bounds.network import Machine, Network
from loadmaster.models.collective.bounds.to_and_fro import to_and_fro_ns, waiting
from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models import cbc
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem

_EIGHT_GPUS = 8


def sum_for_all(topology: Topology, size_bytes: int, count: int = 1) -> Instance:
    everyone = tuple(range(topology.rank_count))
    return Instance(topology, count * (Chunk(size_bytes, everyone, everyone, reduces=True),))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int, int, int]:
    """Machines (message_ns, GB/s) with messages at random times, their end, and what they carry and cost.

    Each message counts as parts or copies, whichever, one after another with waits between.
    """
    machines, ends, carried, costs = [], [], 0, []
    for _ in range(draw(st.integers(1, 3))):
        message_ns, gbps, now = draw(st.sampled_from([0, 1, 5, 20])), draw(st.sampled_from([1, 2])), 0
        for _ in range(draw(st.integers(0, 6))):
            start = now + draw(st.sampled_from([0, 0, 3]))
            length = draw(st.integers(1, 30))
            now = start + message_ns + length
            costs.append((start, now, gbps * length, draw(st.booleans())))
            carried += gbps * length
        machines.append((message_ns, gbps))
        ends.append(now)
    end = max(ends)
    cost = sum(size * (until if parts else end - start) for start, until, size, parts in costs)
    return machines, end, carried, cost


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(layouts())
def test_never_above_the_end_of_messages_that_carry_enough_and_cost_no_more(
    layout: tuple[list[tuple[int, int]], int, int, int],
) -> None:
    """Two parties: all that the machines carry is 2 S, and W is so large that they may cost no more than they do."""
    machines, end, carried, cost = layout
    sum_bytes = carried // 2
    if end:
        covers = [Machine(r, (), message_ns, float(gbps)) for r, (message_ns, gbps) in enumerate(machines)]
        wait = sum_bytes * end - cost
        assert to_and_fro_ns(covers, 2, sum_bytes, 0, 0, wait) <= end
        assert to_and_fro_ns(covers, 2, sum_bytes, 7, 0, wait) <= end + 7


@pytest.mark.parametrize("lengths", [[40], [30, 20], [40, 30, 20], [50, 40, 30, 20]])
def test_it_is_the_end_of_messages_of_the_best_lengths(lengths: list[int]) -> None:
    """As many copies as parts, each later part shorter by what a message costs, 10 ns; copies the same from the end."""
    ends = list(accumulate(10 + x for x in lengths))
    cost = 2 * sum(x * end for x, end in zip(lengths, ends, strict=True))
    sum_bytes, end = sum(lengths), 2 * ends[-1]
    found_ns = to_and_fro_ns([Machine(0, (), 10, 1.0)], 2, sum_bytes, 0, 0, sum_bytes * end - cost)
    assert 0.99 * end < found_ns <= end


def messages(span: float, message_ns: float, steps: int) -> Iterator[tuple[float, float]]:
    """What one machine of 1 GB/s carries, and what that costs: up to 2 messages with parts, and 2 with copies."""
    for parts, copies in product(range(3), repeat=2):
        left = span - (parts + copies) * message_ns
        for shares in product(range(1, steps + 1), repeat=parts + copies) if left > 0 else ():
            if sum(shares) == steps:
                lengths = [left * share / steps for share in shares]
                ends = accumulate(message_ns + x for x in lengths[:parts])
                late = accumulate(message_ns + x for x in lengths[parts:])
                yield left, sum(x * at for x, at in zip(lengths, [*ends, *late], strict=True))


def most_carried(span: float, message_ns: float, wait_ns: float) -> float:
    """Of what 1 GB/s carries in a span, on average over machines; bytes cost half the span less their wait at most."""
    patterns = list(messages(span, message_ns, 16))
    model = pulp.LpProblem("to_and_fro", pulp.LpMaximize)
    share = [pulp.LpVariable(f"share_{i}", 0) for i in range(len(patterns))]
    carried = pulp.lpSum(s * x for s, (x, _) in zip(share, patterns, strict=True))
    model += carried
    model += pulp.lpSum(share) <= 1
    model += pulp.lpSum(s * cost for s, (_, cost) in zip(share, patterns, strict=True)) <= carried * (
        span / 2 - wait_ns
    )
    most = cbc.optimum(model)
    assert most is not None
    return most


def test_on_a_dgx1_it_is_the_optimum_of_its_program() -> None:
    """A machine's messages are tried on a grid, and a program shares them out: half a percent later it does so."""
    size_bytes = 1 << 19
    found = instance_of(problem(preset("dgx1", 1), "allreduce", size_bytes), size_bytes, 1)
    bounds = all_bounds(found, divisible=True)
    bound_ns = max(bound.ns for bound in bounds if bound.by == "parts to and fro between ranks")
    # Each GPU has 6 NVLinks. Of 14 messages of a byte 6 wait for another one, of 700 ns and a byte.
    needed = 2 * 7 * size_bytes / (_EIGHT_GPUS * 6 * 2**20 / 46e3)
    assert most_carried(bound_ns - 1, 700, 6 / 14 * 701) < needed <= most_carried(1.005 * bound_ns, 700, 6 / 14 * 701)


@pytest.mark.parametrize(("divisible", "message_ns"), [(False, 7 + 10), (True, 7 + 1)])
def test_waits_of_a_line_are_to_its_middle_and_back(divisible: bool, message_ns: int) -> None:
    """Five ranks: the outer two wait for one message more, there and back."""
    links = [Link(a, b, 0, 7, 1.0, (k,)) for k, (a, b) in enumerate((a, a + s) for a in range(5) for s in (1, -1))]
    line = Topology("line", (0,) * 5, tuple(k for k in links if 0 <= k.target < 5), tuple(map(str, range(10))))
    network = Network(sum_for_all(line, 10, 2), divisible=divisible)
    assert waiting(network, range(5), line.links, range(2)) == 2 * 10 * 4 * message_ns


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """2 to 5 ranks joined as a tree, there and back over wires, and some links more."""
    count = draw(st.integers(2, 5))
    joined = [(r, draw(st.integers(0, r - 1))) for r in range(1, count)]
    ends = {(a, b) for r, up in joined for a, b in ((r, up), (up, r))}
    rest = [(a, b) for a, b in product(range(count), repeat=2) if a != b and (a, b) not in ends]
    ends |= set(draw(st.lists(st.sampled_from(rest), max_size=2))) if rest else set()
    costs = draw(st.sampled_from([(0, 5), (0, 20), (3, 5), (5, 0)]))
    wires = [Link(a, b, *costs, draw(st.sampled_from([1.0, 2.0])), (k,)) for k, (a, b) in enumerate(sorted(ends))]
    nodes = draw(st.sampled_from([(0,) * count, tuple(range(count))]))
    return Topology("tree", nodes, tuple(wires), tuple(map(str, range(len(wires)))))


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(trees(), st.sampled_from([1, 10, 50]), st.integers(1, 2))
def test_never_above_the_best_schedule(topology: Topology, size_bytes: int, count: int) -> None:
    found = sum_for_all(topology, size_bytes, count)
    search = Search(found, limit=2500)
    if search.best_ns is not None:
        assert check(found, search.sends).ok
        for divisible in (False, True):
            assert all(bound.ns <= search.best_ns for bound in all_bounds(found, divisible=divisible))
