"""The checker against arithmetic by hand where results travel to the host, and every way for a journey to be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.plan import Compute, Fetch, Schedule, Stage
from loadmaster.models.memory.problem import Implementation, MemoryProblem
from loadmaster.models.memory.verdict import Copy
from tests.models.memory.decisions import decisions_of
from tests.models.memory.test_memory_checker import FORWARD, PLENTY, change, three_operators

# One byte a microsecond to the host, two back.
LINK = HostLink(to_host_gbps=0.001, from_host_gbps=0.002)


def travelling(issued_at: int, gone_before: tuple[int, ...] = ()) -> Schedule:
    """Forward 0 goes to the host in the forward pass and comes back for backward 2."""
    back = (Stage((), 0, (1,)), Stage((), 0, (0,), (Fetch(0, issued_at),)), Stage((), 0, ()))
    return Schedule((Stage(FORWARD, None, (1,)), *back), (0,), gone_before)


def test_sent_after_its_last_reader_and_there_until_the_backward_pass() -> None:
    verdict = check(three_operators(host_link=LINK), travelling(issued_at=1), PLENTY)
    assert verdict.violations == ()
    # Read last by forward 1, until 12 us: sent until 16 us, beside the loss, which ends at 13; backward 1 waits. Back
    # from 16 to 18 us, under backward 1.
    assert [e.resident_bytes for e in verdict.events] == [16, 20, 15 + 4, 27 + 4, 34, 27]
    assert [e.start_us for e in verdict.events] == [0, 5, 12, 16, 26, 46]
    assert (verdict.stall_us, verdict.time_us, verdict.offloaded_bytes) == (3, 73 + 3, 4)
    assert verdict.copies == (Copy(0, "to_host", 12, 4, 4), Copy(0, "from_host", 16, 2, 4))


def test_an_operator_waits_until_what_is_to_be_gone_is_gone() -> None:
    problem = three_operators(host_link=LINK)
    verdict = check(problem, travelling(issued_at=1, gone_before=(2,)), PLENTY)
    assert verdict.violations == ()
    assert [e.resident_bytes for e in verdict.events] == [16, 20, 15, 27 + 4, 34, 27]
    assert (verdict.events[2].start_us, verdict.events[2].stall_us) == (16, 4)
    assert (verdict.stall_us, verdict.time_us) == (4, 73 + 4)
    # The loss takes 11 + 6 + 1 + 3 = 21 bytes, and 0 is there too unless it has to be gone.
    light = tuple(replace(b, fixed_bytes=0) for b in problem.backward)
    hungry = replace(problem.forward[2], implementations=(Implementation(1.0, 6),), fixed_bytes=0)
    problem = replace(problem, forward=(*problem.forward[:2], hungry), backward=light)
    assert check(problem, travelling(1), PLENTY).peak_bytes == 25
    assert check(problem, travelling(1, (2,)), PLENTY).peak_bytes == 21
    # Planned for as late as the budget allows.
    assert complete(problem, 25, decisions_of(travelling(1))).gone_before == (3,)
    assert complete(problem, 24, decisions_of(travelling(1))).gone_before == (2,)


def test_fetched_late_stalls() -> None:
    verdict = check(three_operators(host_link=LINK), travelling(issued_at=2), PLENTY)
    assert verdict.violations == ()
    assert [e.resident_bytes for e in verdict.events] == [16, 20, 19, 27, 34, 27]
    assert (verdict.stall_us, verdict.time_us, verdict.objective) == (3 + 2, 78, 78)
    assert [e.start_us for e in verdict.events] == [0, 5, 12, 16, 28, 48]


def test_copies_run_in_the_order_of_the_schedule() -> None:
    """Forward 1 is read last by the loss, forward 0 before it."""
    fetches = (Fetch(1, 1),), (Fetch(0, 1),)
    rest = (Stage((), 0, (1,), fetches[0]), Stage((), 0, (0,), fetches[1]), Stage((), 0, ()))
    for offload, sent in (((0, 1), [(0, 12, 4), (1, 16, 3)]), ((1, 0), [(1, 13, 3), (0, 16, 4)])):
        schedule = Schedule((Stage(FORWARD, None, ()), *rest), offload)
        verdict = check(three_operators(host_link=LINK), schedule, PLENTY)
        assert verdict.violations == ()
        to_host = [c for c in verdict.copies if c.direction == "to_host"]
        assert [(c.forward, c.start_us, c.duration_us) for c in to_host] == sent
        back = [c for c in verdict.copies if c.direction == "from_host"]
        all_sent = to_host[-1].start_us + to_host[-1].duration_us
        returned = [(c.forward, c.start_us, c.duration_us) for c in back]
        assert returned == [(1, all_sent, 1.5), (0, all_sent + 1.5, 2)]
    stuck = check(three_operators(host_link=LINK), replace(schedule, gone_before=(3, 2)), PLENTY)
    assert stuck.violations == ("forward 2 waits for forward 0 to be gone, which is not queued by then",)


WRONG_TRAVEL: list[tuple[MemoryProblem, Schedule, str]] = [
    (three_operators(), travelling(1), "offloads, but the problem has no host_link"),
    (three_operators(host_link=LINK), replace(travelling(1), offload=(0, 0)), "offloaded twice"),
    (three_operators(host_link=LINK), replace(travelling(1), offload=(0, 9)), "forward 9 is offloaded, but is not"),
    (three_operators(host_link=replace(LINK, capacity_bytes=3)), travelling(1), "offloads 4 bytes, host capacity is 3"),
    (
        three_operators(host_link=LINK),
        replace(travelling(1), offload=(1,)),
        "fetches forward 0, which was not offloaded",
    ),
    (three_operators(host_link=LINK), travelling(1, (2, 3)), "1 results are offloaded, but 2 are said to be gone"),
    (three_operators(host_link=LINK), travelling(1, (1,)), "forward 0 is to be gone before forward 1"),
    (three_operators(host_link=LINK), travelling(1, (4,)), "forward 0 is to be gone before forward 4"),
    (three_operators(host_link=LINK), travelling(3), "issued at stage 3: not in 1..2"),
    (three_operators(host_link=LINK), travelling(0), "issued at stage 0: not in 1..2"),
    (
        three_operators(host_link=LINK),
        change(travelling(1), 0, Stage(FORWARD, None, (0, 1))),
        "forward 0 is both kept and offloaded",
    ),
    (
        three_operators(host_link=LINK),
        change(travelling(1), 0, Stage((Compute(0), Compute(1, in_place=True), Compute(2)), None, (1,))),
        "forward 0 is offloaded, but is overwritten",
    ),
    (
        three_operators(host_link=LINK),
        change(travelling(1), 1, Stage((Compute(0),), 0, (0, 1))),
        "fetches forward 0, which is on the device already",
    ),
]


@pytest.mark.parametrize(("problem", "schedule", "words"), WRONG_TRAVEL, ids=[w[2] for w in WRONG_TRAVEL])
def test_every_wrong_journey_is_named(problem: MemoryProblem, schedule: Schedule, words: str) -> None:
    verdict = check(problem, schedule, PLENTY)
    assert any(words in v for v in verdict.violations), verdict.violations


def test_results_that_must_stay() -> None:
    problem = three_operators(host_link=LINK)
    bound = replace(problem, forward=(replace(problem.forward[0], offloadable=False), *problem.forward[1:]))
    assert any("not offloadable" in v for v in check(bound, travelling(1), PLENTY).violations)
