"""Positions of moves: they fit whatever they are given for, and nothing waits where nothing must."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import peak_bytes
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.ways import Way, ways
from loadmaster.planner.training.positions import positions
from tests.models.training.steps import KB, group, problems, step_of

WIDE = 1_000 * KB


def named(problem: TrainingProblem, *names: str) -> list[Way]:
    """A way for each group, by name."""
    return [next(w for w in ways(g) if w.name == name) for g, name in zip(problem.groups, names, strict=True)]


@settings(max_examples=60)
@given(st.data())
def test_positions_pass_the_check_under_any_budget(data: st.DataObject) -> None:
    problem = data.draw(problems())
    points = [data.draw(st.integers(0, len(problem.points(n)) - 1)) for n in range(len(problem.layers))]
    chosen = [data.draw(st.sampled_from(ways(g, has_disk=problem.disk is not None))) for g in problem.groups]
    least = None
    for share in (0.0, 0.4, 0.7, 1.0, 3.0):
        budget = int(share * peak_bytes(problem))
        schedule = positions(problem, points, chosen, budget)
        assert schedule is not None or least is None, "what fits a budget fits a larger one"
        if schedule is not None:
            least = budget
            verdict = check(problem, schedule, budget)
            assert verdict.ok, verdict.violations
            assert schedule.points == tuple(points)
            places = [(plan.weights, plan.state, plan.update) for plan in schedule.groups]
            assert places == [(way.weights, way.state, way.update) for way in chosen]


def test_what_moves_in_time_costs_nothing() -> None:
    # State takes 8 us each way; each layer takes 20.
    problem = step_of(6, *(group(f"g{n}", n) for n in range(6)), points=[Point("keep", 20.0, 20.0, KB)])
    schedule = positions(problem, [0] * 6, named(problem, *["with state on the host"] * 6), WIDE)
    assert schedule is not None
    verdict = check(problem, schedule, WIDE)
    assert verdict.objective == pytest.approx(6 * 40 + 6 * 3)


def test_a_store_is_waited_for_where_there_is_no_room() -> None:
    problem = step_of(6, *(group(f"g{n}", n) for n in range(6)), points=[Point("keep", 20.0, 20.0, KB)])
    chosen = named(problem, *["with state on the host"] * 6)
    times = []
    for budget in (50 * KB, 43 * KB, 42 * KB):
        schedule = positions(problem, [0] * 6, chosen, budget)
        assert schedule is not None
        verdict = check(problem, schedule, budget)
        assert verdict.ok, verdict.violations
        times.append(verdict.objective)
    assert times[0] < times[-1]


def test_clipped_updates_come_one_by_one_as_their_state_does() -> None:
    problem = step_of(
        6, *(group(f"g{n}", n) for n in range(6)), points=[Point("keep", 20.0, 20.0, KB)], clip_grad_norm=True
    )
    schedule = positions(problem, [0] * 6, named(problem, *["with state on the host"] * 6), 72 * KB)
    assert schedule is not None
    verdict = check(problem, schedule, 72 * KB)
    assert verdict.ok, verdict.violations
    after = [plan.update_after for plan in schedule.groups]
    assert after == sorted(a for a in after if a is not None), "the weights that are needed first are updated first"
    assert len(set(after)) > 1


def test_a_copy_stays_between_uses_that_are_near() -> None:
    problem = step_of(6, *(group(f"g{n}", n) for n in range(6)), points=[Point("keep", 20.0, 20.0, KB)])
    chosen = named(problem, *["streamed and updated on the host"] * 6)
    schedule = positions(problem, [0] * 6, chosen, WIDE)
    assert schedule is not None
    assert [len(plan.stays) for plan in schedule.groups] == [2, 2, 2, 2, 2, 1]


@settings(max_examples=60)
@given(st.data())
def test_updates_that_are_put_off_pass_the_check_and_run_no_earlier(data: st.DataObject) -> None:
    problem = data.draw(problems())
    phases = Phases(problem)
    points = [0] * len(problem.layers)
    chosen = [data.draw(st.sampled_from(ways(g))) for g in problem.groups]
    delays = [data.draw(st.integers(0, len(phases))) for _ in problem.groups]
    budget = int(data.draw(st.floats(0.4, 3.0)) * peak_bytes(problem))
    schedule = positions(problem, points, chosen, budget, delays=delays)
    if schedule is None:
        return
    verdict = check(problem, schedule, budget)
    assert verdict.ok, verdict.violations
    for group_, plan, way, delay in zip(problem.groups, schedule.groups, chosen, delays, strict=True):
        if way.has_stay:
            earliest = min(phases.update_from(group_) + delay, phases.next_use(group_) - 1)
            assert plan.update_after is not None and plan.update_after >= earliest


def test_an_update_is_put_off_to_where_the_link_is_idle() -> None:
    """Two states of 8 us each way; the update of the second layer has the time of the first one's to be put off."""
    problem = step_of(2, *(group(f"g{n}", n) for n in range(2)), points=[Point("keep", 20.0, 20.0, KB)])
    chosen = named(problem, *["with state on the host"] * 2)
    schedule = positions(problem, [0] * 2, chosen, WIDE, delays=[0, 2])
    assert schedule is not None
    # Its gradient is complete after phase 2; phase 4 is the forward pass of the first layer, before its own.
    assert [plan.update_after for plan in schedule.groups] == [3, 4]
