"""Limits of training steps: what is needed at least holds for every schedule, and what is enough is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import (
    least_bytes,
    least_us,
    peak_bytes,
    plain_schedule,
    plain_us,
    spread,
    summary,
)
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.residency import residency
from tests.models.training.steps import HOST, KB, group, problems, schedules, step_of

MUCH = 1 << 40
KEEP = Point("keep", 10.0, 20.0, 5 * KB, forward_bytes=2 * KB, backward_bytes=3 * KB)
AGAIN = Point("again", 9.0, 30.0, KB, forward_bytes=2 * KB, backward_bytes=8 * KB)


def test_what_is_enough_keeps_everything() -> None:
    problem = step_of(2, group("a", 0), group("b", 1), points=(KEEP, AGAIN), fixed_bytes=KB, micro_batches=2)
    # Fixed 1, kept 5 + 5, running 3, weights and state 12 + 12; both gradients are there while the first layer runs.
    assert peak_bytes(problem) == (1 + 5 + 5 + 3 + 24 + 4 + 4) * KB
    assert plain_us(problem) == 2 * (30 + 30) + 3 + 3
    frozen = step_of(2, group("a", 0), group("b", 1, trained=False), points=(KEEP, AGAIN))
    # Nothing of b but its weights: the second layer's backward pass takes more than the first one's with a gradient.
    assert peak_bytes(frozen) == (5 + 5 + 3 + 12 + 4) * KB
    assert plain_us(frozen) == 60 + 3


def test_what_is_needed_at_least_by_hand() -> None:
    problem = step_of(2, group("a", 0), group("b", 1), points=(KEEP, AGAIN), fixed_bytes=KB)
    # The second layer runs back: the first one keeps 1, it takes 5 + 3 or 1 + 8, and b is there as a copy with its
    # gradient, 4.
    assert least_bytes(problem) == ((1 + 1 + 8 + 4) * KB, "backward of l1")
    # What the host cannot update is on the device for its update: b after phase 2, 3, or 0 of the next step.
    only = step_of(2, group("a", 0), group("b", 1, state_bytes=30, host_update_us=None), points=(KEEP, AGAIN))
    # That takes 38: weights, state and gradient; with a copy, the gradient is half as wide. There is the most room in
    # phase 0: layer 0 takes 1 + 2, a's copy 2.
    assert least_bytes(only) == ((3 + 2 + 38) * KB, "forward of l0")
    # A group that has no room on the host is on the device.
    full = replace(problem, host=replace(HOST, capacity_bytes=0))
    assert least_bytes(full) == ((1 + 1 + 8 + 24 + 4) * KB, "backward of l1")


def test_some_schedule_takes_no_more_than_the_least() -> None:
    problem = step_of(2, group("a", 0), points=(AGAIN,), fixed_bytes=KB)
    plan = GroupPlan("streamed", "host", "host", stays=(Stay(0, 1), Stay(3, 4)), gradient_gone_at=4)
    least, _ = least_bytes(problem)
    assert check(problem, Schedule((0, 0), (plan,)), least).ok


def test_the_least_time_lets_the_host_update() -> None:
    # Quickest points: 10 + 20 each.
    problem = step_of(2, group("a", 0), points=(KEEP, AGAIN))
    assert least_us(problem) == 60
    assert least_us(replace(problem, micro_batches=3)) == 180
    # Only the device can.
    assert least_us(step_of(2, group("a", 0, host_update_us=None), points=(KEEP,))) == 63
    # 100 us on the host or 50 on the device beside 60: 62 % there.
    assert least_us(step_of(2, group("a", 0, update_us=50.0, host_update_us=100.0), points=(KEEP,))) == pytest.approx(
        60 + 50 * (1 - 11 / 15)
    )
    # Two of them, the host is better at the first.
    pair = (group("a", 0, update_us=50.0, host_update_us=60.0), group("b", 1, update_us=50.0, host_update_us=300.0))
    assert least_us(step_of(2, *pair, points=(KEEP,))) == pytest.approx(110 - 50 * 50 / 350)
    # The link takes as long for gradients.
    slow = step_of(2, group("a", 0, update_us=50.0), points=(KEEP,), tier=Tier("host", 0.02, 1.0))
    assert least_us(slow) == pytest.approx(60 + 50 * (1 - 11 / 15))
    assert least_us(step_of(2, group("a", 0, trained=False), points=(KEEP,))) == 60


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_schedule_takes_less(data: st.DataObject) -> None:
    problem = data.draw(problems())
    schedule = data.draw(schedules(problem))
    room = residency(problem, schedule).host_bytes
    if data.draw(st.booleans()):
        problem = replace(problem, host=replace(problem.host, capacity_bytes=room))
    found = check(problem, schedule, MUCH)
    least, where = least_bytes(problem)
    assert found.peak_bytes >= least
    assert least <= peak_bytes(problem)
    phases = Phases(problem)
    assert where in {phases.words(p) for p in range(len(phases))}
    assume(found.ok)
    assert found.step_us >= least_us(problem) * (1 - 1e-9)
    assert least_us(problem) <= plain_us(problem) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(problem=problems())
def test_everything_on_the_device_is_accepted_and_takes_what_is_said(problem: TrainingProblem) -> None:
    found = check(problem, plain_schedule(problem), peak_bytes(problem))
    assert found.ok
    assert found.peak_bytes == peak_bytes(problem)
    assert found.step_us == pytest.approx(plain_us(problem))
    assert found.host_bytes == found.stored_bytes == found.loaded_bytes == 0


def test_budgets_in_between_are_spread() -> None:
    problem = step_of(2, group("a", 0), group("b", 1), points=(KEEP, AGAIN))
    found = spread(problem, 5)
    assert found == sorted(found) and len(found) == 5
    assert (found[0], found[-1]) == (least_bytes(problem)[0], peak_bytes(problem))


def test_a_summary_says_under_which_limit_and_how_fast() -> None:
    problem = step_of(
        2,
        group("a", 0),
        group("b", 1, host_update_us=None),
        group("c", 1, trained=False),
        points=(KEEP, AGAIN),
        tier=Tier("DRAM", 20.0, 25.0, capacity_bytes=1 << 30),
        micro_batches=2,
        captured_with={"torch": "2.13"},
    )
    found = summary(problem)
    assert found.figures["unconstrained_peak_bytes"] == peak_bytes(problem)
    assert found.figures["unconstrained_us"] == plain_us(problem)
    assert found.figures["least_us"] == least_us(problem)
    assert found.figures["least_budget_bytes"] == least_bytes(problem)[0]
    assert sum(found.figures["bytes_by_role"].values()) == peak_bytes(problem)
    text = str(found)
    for words in (
        "with everything on the device, at backward of l1",
        "126.0 us then, 2 micro-batches; no plan takes less than 123.0 us",
        "no plan needs less, at",
        "state",
        "6.000 us on the device, 5.000 us on the host for 1 of 2 groups",
        "DRAM: 20 GB/s there, 25 back, 1.00 GiB",
        "with torch 2.13",
    ):
        assert words in text, text
