"""Messages in a queue: legal whatever they are, and as fast as can be where that is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.collective.checker import check
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.planner.collective.queueing import queued
from tests.models.collective.tiny import problem, ring, switched


def line(count: int, latency_ns: int, message_ns: int = 0) -> Topology:
    """Wires of 1 GB/s from each rank to the next."""
    links = tuple(Link(r, r + 1, latency_ns, message_ns, 1.0, (r,)) for r in range(count - 1))
    return Topology("line", (0,) * count, links, tuple(f"wire {r}" for r in range(count - 1)))


def test_chunks_follow_one_another_down_a_chain() -> None:
    """The first takes three times 100 + 7; each of the four others ends 100 later."""
    instance = Instance(line(4, 7), tuple(Chunk(100, (0,), (1, 2, 3)) for _ in range(5)))
    messages = [Send(0, r, r + 1, (c,)) for c in range(5) for r in range(3)]
    found = queued(instance, messages, [c for c in range(5) for _ in range(3)])
    assert found is not None
    verdict = check(instance, found)
    assert verdict.ok and verdict.time_ns == 3 * 107 + 4 * 100


def test_the_longest_path_goes_first_whatever_the_sequence() -> None:
    """Rank 0 sends chunk 0 to its neighbour and chunk 1 on to rank 3: that ends at 400 in the sequence's order."""
    instance = Instance(line(4, 0), (Chunk(100, (0,), (1,)), Chunk(100, (0,), (3,))))
    messages = [Send(0, 0, 1, (0,)), Send(0, 0, 1, (1,)), Send(0, 1, 2, (1,)), Send(0, 2, 3, (1,))]
    found = queued(instance, messages, [0] * 4)
    assert found is not None
    verdict = check(instance, found)
    assert verdict.ok and verdict.time_ns == 300


def test_the_first_of_equals_goes_first() -> None:
    instance = Instance(line(2, 0), tuple(Chunk(10, (0,), (1,)) for _ in range(4)))
    found = queued(instance, [Send(0, 0, 1, (c,)) for c in (2, 0, 3, 1)], [0] * 4)
    assert found is not None and [send.chunks for send in found] == [(2,), (0,), (3,), (1,)]


def test_a_sum_waits_for_its_parts_and_copies_for_the_sum() -> None:
    instance = Instance(ring(3, message_ns=0), (Chunk(10, (0, 1, 2), (0, 1, 2), reduces=True),))
    messages = [
        Send(0, 2, 1, (0,), combines=True),
        Send(0, 1, 0, (0,), combines=True),
        Send(0, 0, 1, (0,)),
        Send(0, 0, 2, (0,)),
    ]
    found = queued(instance, messages, [0] * 4)
    assert found is not None
    verdict = check(instance, found)
    assert verdict.ok and verdict.time_ns == 30


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([ring(5, latency_ns=30), switched(1, 6), switched(2, 3, latency_ns=9), line(5, 20, 5)]),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 400)), min_size=1, max_size=12),
)
def test_random_messages_are_legal(topology: Topology, walks: list[tuple[int, int, int]]) -> None:
    """Chunks on walks of some links from where they start; all resources are kept, and nothing leaves too early."""
    chunks, messages, turns = [], [], []
    for c, (start, steps, size_bytes) in enumerate(walks):
        way = [start % topology.rank_count]
        for step in range(steps):
            after = [topology.links[k].target for k in topology.out_links[way[-1]]]
            fresh = [rank for rank in after if rank not in way]
            if fresh:
                way.append(fresh[(c + step) % len(fresh)])
        chunks.append(Chunk(size_bytes, (way[0],), tuple(way)))
        messages += [Send(0, a, b, (c,)) for a, b in pairwise(way)]
        turns += [c % 3] * (len(way) - 1)
    instance = Instance(topology, tuple(chunks))
    found = queued(instance, messages, turns)
    assert found is not None and check(instance, found).ok
    asked, sent = ([(s.source, s.target, s.chunks) for s in sends] for sends in (messages, found))
    assert sorted(asked) == sorted(sent)


@pytest.mark.slow
def test_once_the_time_is_up_there_is_none() -> None:
    instance = instance_of(problem(switched(1, 80), "alltoall", 80 * 8), 80 * 8, 1)
    messages = [Send(0, *chunk.sources, *chunk.targets, (c,)) for c, chunk in enumerate(instance.chunks)]
    messages = [send for send in messages if send.source != send.target]
    assert queued(instance, messages, [0] * len(messages), lambda: True) is None
