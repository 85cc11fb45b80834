"""What answers say of plans that nobody has seen: no bound is above the best plan, no verdict denies one.

The oracle tries every schedule (:mod:`tests.models.memory.brute_force`). Budgets are those at which a byte decides: the
exact peak of a plan, one byte less, and every budget that an answer names.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.errors import LimitReachedError
from loadmaster.models.hardware import HostLink
from loadmaster.models.memory.checker import check_plan
from loadmaster.models.memory.documents import read_plan, read_problem
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from tests.models.memory.brute_force import best_objective, best_objectives
from tests.models.memory.instances import budgets, random_problem, scattered, seeds, with_encoded_of_encoded

CASES = Path(__file__).parent / "cases"
# Bytes that a result has at least, and microseconds that a time has: from none to scale to GiB, from picoseconds up.
SIZES = (1, 1 << 20, 123_456_789, 333_333_333, 999_999_937)
TIMES = ((1.0, 0.0), (1e-6, 3.0), (1e3, 3.0), (1e-4, 1.0), (1.0, 6.0))
# Solvers sum in another order, and call a millionth nothing.
SAME = 1e-6


def problem_of(seed: int) -> MemoryProblem:
    """A tiny graph: long skips, encoded results, choices, results that are made once only, odd bytes, times apart."""
    problem = random_problem(
        seed,
        operators=3,
        skips=0.5,
        in_place=0.5 if seed % 3 else 0.0,
        encodings=0.3 if seed % 8 == 0 else 0.0,
        choices=2 if seed % 4 == 1 else 1,
        once_only=0.1,
        roomy_in_place=0.3,
    )
    unit_us, decades = TIMES[seed % len(TIMES)]
    return scattered(problem, seed, unit_bytes=SIZES[seed // len(TIMES) % len(SIZES)], unit_us=unit_us, decades=decades)


def asked(problem: MemoryProblem, budget_bytes: int, method: str = "auto") -> MemoryPlan:
    plan = planner.plan(problem, budget_bytes=budget_bytes, gap=0.0, time_limit_s=60, method=method)
    assert isinstance(plan, MemoryPlan)
    return plan


def assert_true(problem: MemoryProblem, plan: MemoryPlan, best: float) -> None:
    """The answer is the best there is, and says so; or there is none, and every budget that it names is right."""
    if plan.infeasibility is None:
        assert check_plan(problem, plan).ok
        assert plan.objective == pytest.approx(best, rel=SAME)
        assert plan.bound is not None and plan.bound <= best * (1 + SAME)
        assert plan.status == "optimal"
        return
    assert math.isinf(best)
    least, planned = plan.infeasibility.minimum_budget_bytes, plan.infeasibility.planned_budget_bytes
    assert least > plan.budget_bytes
    assert math.isinf(best_objective(problem, least - 1))
    if planned is not None:
        assert asked(problem, planned).schedule is not None


def assert_true_at_its_peak(problem: MemoryProblem) -> None:
    """Answers under the exact peak of a plan, and under one byte less."""
    plan = asked(problem, budgets(problem, (0.4,))[0])
    if plan.infeasibility is not None:
        planned = plan.infeasibility.planned_budget_bytes
        if planned is None:
            return
        plan = asked(problem, planned)
    peak = int(plan.check["peak_bytes"])
    one_less, there = best_objectives(problem, [peak - 1, peak])
    assert there <= (plan.objective or 0.0) * (1 + SAME)
    method, other = ("auto", "monet") if peak % 2 else ("monet", "auto")
    assert_true(problem, asked(problem, peak, method), there)
    assert_true(problem, asked(problem, peak - 1, other), one_less)


@pytest.mark.parametrize("first", seeds([0], range(5, 525, 5)))
def test_nothing_false_is_proved_at_the_byte(first: int) -> None:
    for seed in range(first, first + 5):
        assert_true_at_its_peak(problem_of(seed))


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 10)))
def test_an_encoded_result_may_be_made_of_another(seed: int) -> None:
    problem = with_encoded_of_encoded(seed)
    for budget in budgets(problem, (0.0, 0.3, 0.6, 1.3)):
        best = best_objective(problem, budget)
        for method in ("auto", "monet"):
            assert_true(problem, asked(problem, budget, method), best)


@pytest.mark.parametrize("method", ["plain", "gist", "chen", "checkmate"])
def test_baselines_make_what_an_encoded_result_is_made_of(method: str) -> None:
    for seed in range(6):
        problem = with_encoded_of_encoded(seed)
        assert check_plan(problem, asked(problem, 1000, method)).ok


def test_checkmate_has_a_plan_under_its_own_peak() -> None:
    """And says that it has none only where that is so of all that it considers."""
    for seed in range(12):
        problem = problem_of(seed)
        try:
            plan = asked(problem, budgets(problem, (0.7,))[0], "checkmate")
        except LimitReachedError:
            continue
        if plan.schedule is not None:
            again = asked(problem, int(plan.check["peak_bytes"]), "checkmate")
            assert again.objective == pytest.approx(plan.objective, rel=SAME)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [9, 21, 37])
def test_with_a_link_plans_that_need_none_are_candidates(seed: int) -> None:
    """So slow a link that nothing is gained by it."""
    problem = problem_of(seed)
    without = asked(problem, budgets(problem, (0.4,))[0])
    if without.infeasibility is not None and without.infeasibility.planned_budget_bytes is not None:
        without = asked(problem, without.infeasibility.planned_budget_bytes)
    peak = int(without.check["peak_bytes"])
    linked = asked(replace(problem, host_link=HostLink(1.0, 1.0)), peak)
    assert linked.objective is not None and linked.bound is not None
    assert linked.objective <= best_objective(problem, peak) * (1 + SAME)
    assert linked.bound <= linked.objective


def case(name: str) -> Any:
    return json.loads((CASES / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "plan", "method"), [("tight_54", "tight_54_plan", "auto"), ("memr_17", "memr_17_auto", "monet")]
)
def test_a_plan_that_passes_is_found_again_under_its_peak(name: str, plan: str, method: str) -> None:
    problem, known = read_problem(case(name)), read_plan(case(plan))
    verdict = check_plan(problem, known)
    assert verdict.ok and verdict.peak_bytes == known.budget_bytes
    one_less, best = best_objectives(problem, [known.budget_bytes - 1, known.budget_bytes])
    assert math.isinf(one_less) and best <= verdict.objective
    assert_true(problem, asked(problem, known.budget_bytes, method), best)
    assert_true(problem, asked(problem, known.budget_bytes - 1, method), one_less)


@pytest.mark.parametrize("budget", range(4, 9))
def test_a_budget_of_a_few_bytes_is_a_budget(budget: int) -> None:
    """Programs in MiB took such bytes for rounding."""
    problem = read_problem(case("m30060"))
    best = best_objective(problem, budget)
    for method in ("auto", "monet"):
        assert_true(problem, asked(problem, budget, method), best)
