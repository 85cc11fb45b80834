"""Trace events of a planned step: one slice per operator of the replay and per copy, bytes and budget as counters."""

from __future__ import annotations

import pytest

from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.verdict import PLANNED, Copy, Event, MemoryCheck, planned_events
from tests.models.memory.instances import random_problem


@pytest.mark.parametrize("seed", range(5))
def test_every_operator_of_the_replay_is_a_slice(seed: int) -> None:
    problem = random_problem(seed)
    verdict = check(problem, plain.formulate(problem), 1 << 40)
    events = planned_events("a step", verdict, 99)
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["ts"], e["dur"], e["cat"]) for e in slices] == [
        (e.start_us, e.duration_us, e.what) for e in verdict.events
    ]
    levels = [e["args"]["resident_bytes"] for e in events if e["ph"] == "C" and e["name"] == "memory"]
    assert levels == [e.resident_bytes for e in verdict.events]
    assert {e["args"]["budget_bytes"] for e in events if e["name"] == "budget"} == {99}
    assert {e["pid"] for e in events} == {PLANNED}


def test_waiting_and_copies_have_their_slices() -> None:
    """By hand: forward 0 takes 5 us and is sent until 9; the backward pass waits for that, and fetches it again."""
    replay = (Event(0, "forward", 0, "linear", 0.0, 5.0, 40), Event(1, "backward", 1, "linear", 9.0, 6.0, 50))
    copies = (Copy(0, "to_host", 5.0, 4.0, 32), Copy(0, "from_host", 9.0, 3.0, 32))
    verdict = MemoryCheck(True, (), 50, "", 15.0, 15.0, 5.0, 0.0, 6.0, 4.0, 0, 32, replay, copies)
    slices = {(e["tid"], e["ts"]): (e["name"], e["dur"]) for e in planned_events("s", verdict, 60) if e["ph"] == "X"}
    assert slices == {
        (1, 0.0): ("linear", 5.0),
        (1, 5.0): ("wait for copies", 4.0),
        (1, 9.0): ("linear", 6.0),
        (2, 5.0): ("forward 0", 4.0),
        (3, 9.0): ("forward 0", 3.0),
    }
    tracks = {e["tid"]: e["args"]["name"] for e in planned_events("s", verdict, 60) if e["name"] == "thread_name"}
    assert tracks == {1: "compute", 2: "to host", 3: "from host"}
