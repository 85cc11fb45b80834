"""The time-indexed program: against its twin, against all plans there are, and against its own relaxation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.models.placement import slots, timed
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import check
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.placement.instances import UNIT, all_moves, budgets, random_problem
from tests.models.placement.twins import placement_twin


def value(problem: PlacementProblem, cut: slots.Slots, budget_bytes: int, *, exact: bool) -> float:
    program = timed.formulate(Accesses(problem), cut, budget_bytes, exact=exact).program
    found = solve(program, SolveOptions(gap=0.0), solver="highs").objective
    assert found is not None
    return found


def exact_value(problem: PlacementProblem, budget_bytes: int) -> float:
    return value(problem, slots.every(Accesses(problem), budget_bytes), budget_bytes, exact=True)


def fluid_value(problem: PlacementProblem, budget_bytes: int, most: int) -> float:
    return value(problem, slots.merged(Accesses(problem), budget_bytes, most), budget_bytes, exact=False)


@pytest.mark.parametrize("seed", range(12))
def test_array_and_pulp_twin_have_the_same_optimum(seed: int) -> None:
    problem = random_problem(seed, operators=5, blocks=4, tiers=1 + seed % 2)
    for budget in budgets(problem)[::2]:
        assert exact_value(problem, budget) == pytest.approx(placement_twin(problem, budget, integer=True))


@pytest.mark.parametrize("seed", range(6))
def test_the_twins_agree_on_a_tier_that_is_nearly_full(seed: int) -> None:
    problem = random_problem(seed, operators=5, blocks=5, tiers=2)
    for budget in budgets(problem)[::2]:
        over = int(Accesses(problem).live_bytes.max()) - budget
        tight = replace(problem, tiers=(replace(problem.tiers[0], capacity_bytes=over // 2), *problem.tiers[1:]))
        assert exact_value(tight, budget) == pytest.approx(placement_twin(tight, budget, integer=True))


# Of some there are ten times as many plans.
@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.slow) if s in (1, 10, 12) else s for s in range(16)]
)
def test_no_plan_is_better_than_the_bounds(seed: int) -> None:
    problem = random_problem(seed, operators=4, blocks=3)
    accesses = Accesses(problem)
    found = {budget: float("inf") for budget in budgets(problem)}
    for moves in all_moves(problem):
        verdict = check(problem, moves, int(accesses.live_bytes.max()), accesses)
        assert verdict.ok, verdict.violations
        for budget in found:
            if verdict.peak_bytes <= budget:
                found[budget] = min(found[budget], verdict.objective)
    for budget, best in found.items():
        exact = exact_value(problem, budget)
        assert exact <= best + 1e-6
        for most in (2, 4, 20):
            assert fluid_value(problem, budget, most) <= exact + 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_without_integers_the_twin_is_no_less_than_the_fluid_relaxation(seed: int) -> None:
    problem = random_problem(seed, operators=6, blocks=6)
    for budget in budgets(problem)[::2]:
        assert fluid_value(problem, budget, 50) <= placement_twin(problem, budget, integer=False) + 1e-6


def test_equal_contents_are_one_group_of_the_relaxation() -> None:
    problem = random_problem(3, operators=6, blocks=4)
    twice = replace(
        problem,
        blocks=(*problem.blocks, *problem.blocks),
        operators=tuple(
            replace(o, reads=(*o.reads, *(b + 4 for b in o.reads)), writes=(*o.writes, *(b + 4 for b in o.writes)))
            for o in problem.operators
        ),
    )
    half = int(Accesses(problem).live_bytes.max()) - UNIT
    faster = tuple(replace(t, to_gbps=2 * t.to_gbps, from_gbps=2 * t.from_gbps) for t in problem.tiers)
    assert fluid_value(replace(twice, tiers=faster), 2 * half, 8) == pytest.approx(fluid_value(problem, half, 8))
    cut = slots.merged(Accesses(twice), 2 * half, 8)
    once = timed.groups(Accesses(twice), cut, together=True)
    assert len(once) <= len(timed.groups(Accesses(twice), cut, together=False)) // 2
