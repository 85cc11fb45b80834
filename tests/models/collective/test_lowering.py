"""Messages with what they wait for: the global order, every part that was added up, the longest chain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.lowering import lower, messages_of
from loadmaster.models.collective.plan import Algorithm, Send
from tests.models.collective.schedules import random_schedule, ring_allgather
from tests.models.collective.tiny import problem, ring


def test_levels_are_the_steps_of_a_ring() -> None:
    given_ = problem(ring(5), "allgather", 500)
    sends = ring_allgather(instance_of(given_, 500, 1))
    lowered = lower(given_, Algorithm(500, 1, "direct", sends, 0, 0, "", 0))
    assert [message.level for message in lowered.messages] == [step for step in range(4) for _ in range(5)]
    assert [len(message.waits_for) for message in lowered.messages] == [0] * 5 + [1] * 15


def test_nothing_to_do_has_no_messages() -> None:
    assert lower(problem(ring(2), "allgather", 8), Algorithm(8, 1, "direct", (), 0, 0, "", 0)).messages == ()


def test_a_sum_waits_for_all_its_parts() -> None:
    parts = (Send(0, 0, 3, (0,), True), Send(0, 1, 3, (0,), True), Send(5, 2, 3, (0,), True))
    messages = messages_of((Send(9, 3, 4, (0,)), *parts, Send(20, 4, 5, (0,))))
    assert [message.waits_for for message in messages] == [(), (), (), (0, 1, 2), (3,)]
    assert [message.level for message in messages] == [0, 0, 0, 1, 2]


@given(st.integers(2, 5), st.integers(0, 999))
def test_the_global_order_is_by_time_and_waits_are_for_the_past(ranks: int, seed: int) -> None:
    given_ = problem(ring(ranks), "allreduce", ranks * 16)
    sends = random_schedule(instance_of(given_, ranks * 16, 1), seed)
    messages = messages_of(tuple(reversed(sends)))
    starts = {(s.source, s.target, s.chunks, s.combines): s.start_ns for s in sends}
    order = [starts[m.source, m.target, m.chunks, m.combines] for m in messages]
    assert order == sorted(order)
    for message in messages:
        into = {
            other.index
            for other in messages[: message.index]
            if other.target == message.source and set(other.chunks) & set(message.chunks)
        }
        assert set(message.waits_for) == into
        assert message.level == 1 + max((messages[m].level for m in into), default=-1)
