"""Outlook on a training step: bounds below every plan, the quickest baseline, and both in the problem's summary."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from loadmaster.errors import LimitReachedError, SolverError
from loadmaster.models.training.limits import least_bytes, least_us, peak_bytes, plain_us
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.planner.effort import Effort
from loadmaster.planner.options import PlanOptions
from loadmaster.planner.training import outlook as room
from loadmaster.planner.training.baselines import BASELINES
from loadmaster.planner.training.driver import plan_training
from loadmaster.planner.training.outlook import Outlook, outlook, outlooks
from tests.models.training.steps import KB, group, step_of

POINTS = (Point("keep", 20.0, 30.0, 12 * KB), Point("checkpoint", 20.0, 45.0, 2 * KB, 0, 10 * KB))


def step() -> TrainingProblem:
    """A step of four layers whose updates on the host take longer than all else."""
    return step_of(4, *(group(f"g{n}", n, host_update_us=90.0) for n in range(4)), points=POINTS)


def steps_of_baselines(problem: TrainingProblem, budget_bytes: int) -> dict[str, float]:
    """Steps of the plans that the planner makes by each baseline alone."""
    found = {}
    for method in BASELINES:
        try:
            plan = plan_training(problem, PlanOptions(budget_bytes=budget_bytes, method=method))
        except LimitReachedError:
            continue
        assert plan.objective is not None
        found[method] = plan.objective
    return found


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_the_best_plan_is_between_the_bound_and_the_baseline(share: float) -> None:
    problem = step()
    budget = int(share * peak_bytes(problem))
    seen, plan = outlook(problem, budget), plan_training(problem, PlanOptions(budget_bytes=budget, time_limit_s=5))
    steps = steps_of_baselines(problem, budget)
    assert seen.baseline is not None and seen.step_us == pytest.approx(min(steps.values()))
    assert steps[seen.baseline] == pytest.approx(seen.step_us)
    assert plan.objective is not None
    assert least_us(problem) <= seen.bound_us <= plan.objective + 1e-6
    assert plan.objective <= seen.step_us + 1e-6


def test_with_everything_on_the_device_plain_comes_first() -> None:
    problem = step()
    seen = outlook(problem, peak_bytes(problem))
    assert (seen.baseline, seen.step_us) == ("plain", pytest.approx(plain_us(problem)))


def test_where_nothing_fits_there_is_no_bound() -> None:
    problem = step()
    seen = outlook(problem, least_bytes(problem)[0] - 1)
    assert (seen.bound_us, seen.step_us, seen.baseline) == (math.inf, None, None)


def test_budgets_are_halves_of_the_largest_down_to_the_least() -> None:
    problem = step()
    least, peak = least_bytes(problem)[0], peak_bytes(problem)
    found = [one.budget_bytes for one in outlooks(problem)]
    assert found[0] == peak and found[-1] == least and found == sorted(found, reverse=True)
    assert all(2 * low in (high, high - 1) for high, low in pairwise(found[:-1]))
    assert outlooks(replace(problem, budget_bytes=peak - 8))[0].budget_bytes == peak - 8
    # More than the peak is of no use.
    assert outlooks(replace(problem, budget_bytes=peak + 8)) == outlooks(problem)


@pytest.mark.parametrize("capacity", [None, 1])
def test_where_nothing_fits_the_problems_budget_larger_ones_are_looked_at(capacity: int | None) -> None:
    problem = step()
    problem = replace(problem, host=replace(problem.host, capacity_bytes=capacity))
    below = least_bytes(problem)[0] - 1
    found = outlooks(replace(problem, budget_bytes=below))
    assert found[-1] == Outlook(below, math.inf)
    assert found[0] == outlook(problem, peak_bytes(problem)) and found[0].baseline == "plain"
    assert all(one.budget_bytes > below for one in found[:-1])


def test_the_summary_says_how_fast_under_which_limit() -> None:
    problem = step()
    said = problem.summary()
    looked = said.figures["how_fast"]
    assert [one["budget_bytes"] for one in looked] == [one.budget_bytes for one in outlooks(problem)]
    assert (looked[0]["objective"], looked[0]["method"]) == (pytest.approx(plain_us(problem)), "plain")
    assert "how fast" in str(said) and "plain takes" in str(said)
    assert said.figures["least_budget_bytes"] == least_bytes(problem)[0]


def test_of_a_large_step_there_is_the_bound_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2 x 4 phases, 4 groups.
    monkeypatch.setattr(room, "_MOST_TRIED", 31)
    seen = step().summary()
    assert "no plan takes less than" in str(seen) and "baseline" not in str(seen)
    assert {one["method"] for one in seen.figures["how_fast"]} == {None}


def test_without_a_solver_the_bound_is_of_any_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise SolverError("no solver here")

    problem = step()
    monkeypatch.setattr(Effort, "solved", broken)
    assert outlook(problem, peak_bytes(problem)).bound_us == least_us(problem)
