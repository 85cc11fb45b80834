"""Plans by eviction: what they decide is a plan, at once, and down to budgets that leave hardly any room."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from loadmaster import planner
from loadmaster.models.memory import plain, unconstrained
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.presets import chain, example
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import PlanOptions
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory import driver
from loadmaster.planner.memory.eviction import WEIGHTS, Eviction
from loadmaster.planner.memory.eviction_search import evict
from loadmaster.planner.memory.search import Search
from tests.models.memory.brute_force import best_objective
from tests.models.memory.instances import budgets, random_problem, seeds


def verdicts(problem: MemoryProblem, budget: int) -> Iterator[MemoryCheck]:
    eviction = Eviction(problem)
    for ways, weights in itertools.product(eviction.ways(), WEIGHTS):
        decisions = eviction.decide(budget, ways, weights, lambda: False)
        if decisions is not None:
            yield check(problem, complete(problem, budget, decisions), budget)


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 60)))
def test_what_it_decides_can_be_carried_out(seed: int) -> None:
    """Whatever is evicted, everything read is there; only bytes saved in place may be counted that cannot be had."""
    problem = random_problem(seed, operators=8, once_only=0.2 * (seed % 2), unit_bytes=1 << 20)
    for budget in budgets(problem, (0.05, 0.3, 0.6, 2.0)):
        for verdict in verdicts(problem, budget):
            assert all("over the budget" in v for v in verdict.violations)
    assert any(v.ok for v in verdicts(problem, budgets(problem, (2.0,))[0]))


@pytest.mark.parametrize("seed", range(3))
def test_without_operators_in_place_what_it_decides_fits(seed: int) -> None:
    problem = random_problem(seed, operators=8, in_place=0.0, unit_bytes=1 << 20)
    for budget in budgets(problem, (0.1, 0.3, 0.6)):
        assert all(v.ok for v in verdicts(problem, budget))


@pytest.mark.parametrize("seed", range(4))
def test_it_is_no_better_than_the_best_and_with_room_as_good(seed: int) -> None:
    problem = random_problem(seed, operators=3, encodings=0.2)
    for budget in budgets(problem, (0.4, 0.7)):
        best = best_objective(problem, budget)
        assert all(v.objective >= best - 1e-9 for v in verdicts(problem, budget) if v.ok)
    with_room = min(v.objective for v in verdicts(problem, 1 << 40))
    assert with_room == pytest.approx(check(problem, unconstrained.formulate(problem), 1 << 40).objective)


@pytest.mark.parametrize(
    ("name", "times"), [("mobilenet_v2-b272", 1.1), pytest.param("resnet50-b184", 1.3, marks=pytest.mark.slow)]
)
def test_little_more_than_the_least_has_a_plan(name: str, times: float) -> None:
    problem = read_problem(example(name))
    budget = int(times * minimum_budget(problem).budget_bytes)
    assert any(v.ok for v in verdicts(problem, budget))


def test_a_long_chain_is_planned_in_little_memory() -> None:
    problem = read_problem(chain(40, 1000))
    verdict = next(v for v in verdicts(problem, int(1.5 * minimum_budget(problem).budget_bytes)))
    assert verdict.ok and verdict.recomputed > 40


def test_without_a_plan_there_is_a_budget_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the minimum that is proved; asked for exactly that, the planner has a plan at once."""
    monkeypatch.setattr(driver, "MOST_SEEKING_S", 600.0)
    problem = read_problem(chain(20, 1000))
    least = minimum_budget(problem).budget_bytes
    none = planner.plan(problem, budget_bytes=least // 2, time_limit_s=6000)
    assert none.status == "infeasible" and none.infeasibility.minimum_budget_bytes == least
    planned = none.infeasibility.planned_budget_bytes
    assert planned is not None and least <= planned < plain.peak_bytes(problem)
    monkeypatch.setattr(driver, "_by_programs", lambda _: None)
    assert planner.plan(problem, budget_bytes=planned, time_limit_s=6000).check["peak_bytes"] <= planned


def test_the_first_way_to_evict_has_more_time_than_all() -> None:
    """Where there is time for one play, its plan is there."""
    problem = read_problem(chain(40, 1000))
    budget = 2 * minimum_budget(problem).budget_bytes
    search = Search(problem, budget, Effort(PlanOptions(budget_bytes=budget), None, None))
    evict(search, 0.0, 600.0)
    assert search.method == "eviction" and search.verdict is not None and search.verdict.ok


def nothing_kept(problem: MemoryProblem, budget: int) -> MemoryCheck:
    decisions = Eviction(problem).nothing_kept(lambda: False)
    assert decisions is not None
    return check(problem, complete(problem, budget, decisions), budget)


@pytest.mark.parametrize("seed", range(8))
def test_to_keep_nothing_can_be_carried_out(seed: int) -> None:
    problem = random_problem(seed, operators=8, once_only=0.2 * (seed % 2), unit_bytes=1 << 20)
    assert nothing_kept(problem, 1 << 40).ok


def test_a_chain_has_a_plan_at_its_least_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the programs find none in time; and one byte below it the answer names it."""
    problem = read_problem(chain(50, 1000))
    least = minimum_budget(problem).budget_bytes
    assert nothing_kept(problem, least).ok
    monkeypatch.setattr(driver, "_by_programs", lambda _: None)
    plan = planner.plan(problem, budget_bytes=least, time_limit_s=6000)
    assert plan.status == "feasible" and plan.check["ok"]
    none = planner.plan(problem, budget_bytes=least - 1, time_limit_s=6000)
    assert none.infeasibility.planned_budget_bytes == least
