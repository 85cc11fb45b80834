"""Pruning and retiming: what serves nobody goes, what is left starts as early as its order allows."""

from __future__ import annotations

import pytest

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.symmetry import closure
from loadmaster.planner.collective.greedy import searcher
from loadmaster.planner.collective.link_subsets import FULL, LinkSubset, links_of, offsets
from loadmaster.planner.collective.prune import finish_ns, prune, retime, time_at
from tests.models.collective.tiny import problem, ring, switched

LINE = Instance(ring(4, message_ns=0), (Chunk(100, (0,), (2,)), Chunk(100, (0,), (1,))))


def test_sends_that_serve_nobody_are_pruned() -> None:
    needed = (Send(0, 0, 1, (0,)), Send(100, 1, 2, (0,)), Send(100, 0, 1, (1,)))
    idle = (Send(0, 0, 3, (0,)), Send(300, 3, 2, (0,)), Send(200, 1, 2, (1,)))
    assert prune(LINE, needed + idle) == (needed[0], needed[2], needed[1])


def test_a_chunk_that_serves_nobody_leaves_its_message() -> None:
    sends = (Send(0, 0, 1, (0, 1)), Send(200, 1, 2, (0, 1)))
    assert prune(LINE, sends) == (Send(0, 0, 1, (0, 1)), Send(200, 1, 2, (0,)))


def test_retiming_closes_gaps_and_keeps_orders() -> None:
    loose = (Send(50, 0, 1, (1,)), Send(500, 0, 1, (0,)), Send(900, 1, 2, (0,)))
    tight = retime(LINE, loose)
    assert [(s.start_ns, s.chunks) for s in tight] == [(0, (1,)), (100, (0,)), (200, (0,))]
    assert finish_ns(LINE, tight) == 300
    assert check(LINE, tight).ok


def test_retiming_waits_until_a_source_is_ready() -> None:
    tight = retime(LINE, (Send(0, 0, 1, (0,)), Send(100, 1, 2, (0,))), {(0, 0): 70})
    assert [send.start_ns for send in tight] == [70, 170]


def test_parts_of_a_sum_wait_for_each_other() -> None:
    instance = Instance(ring(4, message_ns=0), (Chunk(100, (0, 1, 2, 3), (2,), True),))
    loose = tuple(
        Send(start, source, target, (0,), True) for start, source, target in ((0, 0, 1), (700, 1, 2), (700, 3, 2))
    )
    tight = retime(instance, loose)
    assert sorted((s.source, s.start_ns) for s in tight) == [(0, 0), (1, 100), (3, 0)]
    assert check(instance, tight).ok


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_the_time_at_another_size_is_that_of_a_right_schedule(collective: str) -> None:
    topology = switched(2, 4)
    posed = problem(topology, collective, 6400)  # type: ignore[arg-type]
    sends = searcher(instance_of(posed, 6400, 1)).search(bound_ns=0, seconds=60, runs=5)
    assert sends is not None
    times = []
    for size_bytes in (64, 6400, 640_000):
        at = instance_of(posed, size_bytes, 1)
        verdict = check(at, retime(at, sends))
        assert verdict.ok
        assert verdict.time_ns == time_at(at, sends)
        times.append(verdict.time_ns)
    assert times == sorted(times)


def test_offsets_reach_everyone_in_few_steps() -> None:
    assert offsets(8, 2) == {1, 2, 4}
    assert offsets(16, 4) == {1, 2, 3, 4, 8, 12}
    assert offsets(6, 0) == {1, 2, 3, 4, 5}
    assert offsets(6, 1) == {1}


def test_link_subsets_are_whole_orbits() -> None:
    instance = instance_of(problem(switched(4, 4), "allgather", 6400), 6400, 1)
    group = closure((), 16, 16)
    topology = instance.topology
    assert len(links_of(instance, FULL, group)) == len(topology.links)
    kept = [topology.links[k] for k in links_of(instance, LinkSubset(2, 1, "rails"), group)]
    assert {(k.target - k.source) % 4 for k in kept if not topology.crosses(k)} == {1, 2}
    assert {(k.target - k.source) % 16 for k in kept if topology.crosses(k)} == {4}
