"""A problem whose layers have one group each stands for one whose layers have several."""

from __future__ import annotations

from dataclasses import replace

import pytest

import loadmaster
from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import peak_bytes
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.planner.training.baselines import Mix
from loadmaster.planner.training.merged import merged
from tests.models.training.steps import group, random_problem, step_of


def in_parts(problem: TrainingProblem) -> TrainingProblem:
    """The problem with two groups for each that one layer uses."""
    halves = []
    for of in problem.groups:
        sizes = {name: value // 2 for name, value in vars(of).items() if name.endswith("_bytes")}
        host_us = None if of.host_update_us is None else of.host_update_us / 2
        half = replace(of, **sizes, update_us=of.update_us / 2, host_update_us=host_us)
        halves += [half, replace(half, name=f"{of.name}, too")] if len(of.layers) == 1 else [of]
    return replace(problem, groups=tuple(halves))


def test_groups_of_a_layer_are_one() -> None:
    problem = in_parts(random_problem(1, 4))
    found = merged(problem)
    assert found is not None
    whole = random_problem(1, 4)
    assert [of.layers for of in found.problem.groups] == [of.layers for of in whole.groups]
    for name in ("weight_bytes", "state_bytes", "update_us", "host_update_us"):
        sums = [getattr(of, name) for of in found.problem.groups]
        assert sums == [pytest.approx(getattr(of, name), abs=1) for of in whole.groups]
    mix = found.unmerged(Mix((0, 0, 0, 0), (4, 1, 2, 3), (0, 5, 6, 7)))
    assert [mix.ways[n] for n in range(len(problem.groups))] == [4, 1, 1, 2, 2, 3, 3]
    assert mix.delays == (0, 5, 5, 6, 6, 7, 7)
    assert merged(whole) is None


def test_groups_that_may_not_be_treated_alike_stay_apart() -> None:
    some = group("a", 1), group("b", 1, trained=False), group("c", 1, host_update_us=None), group("d", 0, 1)
    assert merged(step_of(2, *some)) is None
    assert merged(step_of(2, *some, group("e", 0, 1))) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_plans_of_parts_are_no_longer_than_those_of_whole_groups(seed: int) -> None:
    whole = random_problem(seed, 8)
    problem = in_parts(whole)
    budget = int(0.5 * peak_bytes(whole))
    plans = [loadmaster.plan(p, budget_bytes=budget, time_limit_s=600, progress=False) for p in (whole, problem)]
    assert all(plan.objective is not None and plan.schedule is not None for plan in plans)
    assert check(problem, plans[1].schedule, budget).ok
    assert plans[1].objective <= 1.02 * plans[0].objective
    found = merged(problem)
    assert found is not None
    together = check(problem, found.all_together(plans[0].schedule), budget)
    assert together.ok
    assert together.objective == pytest.approx(plans[0].objective, rel=0.03)  # more moves, with a latency each


def test_a_problem_of_whole_groups_is_searched_once() -> None:
    said = []
    problem = random_problem(3, 8)
    loadmaster.plan(problem, budget_bytes="50%", time_limit_s=600, on_progress=said.append)
    assert "search" in {each.phase for each in said}
    assert not [each for each in said if (each.phase, each.message) == ("search", "does not fit")]
