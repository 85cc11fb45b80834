"""Training does not wait long for its first plan; what a planner finds with more time is tried beside training."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from loadmaster.errors import LimitReachedError
from loadmaster.executor import fit
from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.fit import fitted as outcome
from loadmaster.executor.memory.fit.planned import SOON_S
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.statements import overhead_gap
from tests.executor.memory import schedules
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.memory.models import mlp_case

pytestmark = pytest.mark.slow  # each test is a fit


class Patient(HandPlanner):
    """Under a limit it has a plan that keeps nothing, with this gap, or none."""

    def __init__(self, gap: float | None = 0.1, stopped_by: str = "time") -> None:
        super().__init__(step=1)
        self.gap, self.stopped_by, self.limits = gap, stopped_by, []

    def __call__(self, problem, options=None, *, time_limit_s=None):
        time_limit_s = time_limit_s or options
        self.limits.append(time_limit_s)
        if time_limit_s is None:
            return super().__call__(problem)
        if self.gap is None:
            raise LimitReachedError("no plan within the limit")
        plan = schedules.plan(problem, schedules.schedule(problem, lambda i: False), problem.budget_bytes)
        objective = check(problem, plan.schedule, problem.budget_bytes).objective
        bound = (1 - self.gap) * objective
        gaps = {"gap": self.gap, "overhead_gap": overhead_gap(objective, bound, plan.unconstrained)}
        return replace(plan, objective=objective, bound=bound, stopped_by=self.stopped_by, **gaps)


@pytest.fixture
def begin(runs, helpers, budget, monkeypatch):
    """A fit with this planner, where torch.compile's own partition never keeps the budget."""
    runs.curve = lambda knob: (1 << 60, 1.0)
    monkeypatch.setattr(outcome, "MOST_SHARE", float("inf"))  # training has gone on for long

    def begin(planner, **options):
        model, batch, loss = mlp_case()
        costs, tolerance = roofline("cpu"), 1e9
        return fit(
            *(model, batch, loss),
            **{"budget_bytes": budget, "planner": planner, "costs": costs, "time_tolerance": tolerance} | options,
        )

    return begin


def test_a_first_plan_is_made_soon_and_a_better_one_while_it_trains(begin, runs):
    planner = Patient()
    fitted = begin(planner)
    assert planner.limits[0] == SOON_S and runs.plans == 1 and not fitted.is_final
    coarse = fitted.plan
    runs.plan_us /= 2
    fitted.finish()
    assert planner.limits == [SOON_S, None] and runs.plans == 2
    assert fitted.chosen == 1 and fitted.plan.schedule != coarse.schedule


@pytest.mark.parametrize(("gap", "stopped_by"), [(0.01, "time"), (0.1, "method")])
def test_a_plan_that_more_time_makes_no_better_is_the_last(begin, runs, gap, stopped_by):
    planner = Patient(gap, stopped_by)
    begin(planner).finish()
    assert planner.limits == [SOON_S] and runs.plans == 1


def test_without_a_plan_by_then_the_planner_has_its_own_time(begin, runs):
    planner = Patient(gap=None)
    begin(planner).finish()
    assert planner.limits == [SOON_S, None] and runs.plans == 1


def test_all_tries_at_once_leave_the_planner_its_time(begin):
    planner = Patient()
    begin(planner, tune_while_training=False)
    assert planner.limits == [None]


@pytest.mark.parametrize("name", ["options", "time_limit_s"])
def test_a_limit_of_the_users_stands(begin, name):
    planner = Patient()
    begin(functools.partial(planner, **{name: 5.0})).finish()
    assert set(planner.limits) == {5.0}


def test_a_planner_that_takes_no_limit_is_given_none(begin):
    planner = HandPlanner(step=1)
    fitted = begin(lambda problem: planner(problem)).finish()
    assert len(planner.asked) == 1 and fitted.plan is not None
