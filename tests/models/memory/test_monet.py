"""MONeT's formulation: its optimum is the best that the checker accepts, and its points read back as schedules."""

from __future__ import annotations

import math

import pytest

from loadmaster.models.memory import monet
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus
from tests.models.memory.brute_force import best_objective
from tests.models.memory.instances import budgets, random_problem


def solved(formulation: monet.Monet) -> Solution:
    return solve(formulation.program, SolveOptions(gap=0.0), solver="highs")


def assert_exact(problem: MemoryProblem, budget: int) -> bool:
    """The program's optimum is the brute-force optimum and reads back as such; says whether there is a schedule."""
    best = best_objective(problem, budget)
    formulation = monet.formulate(problem, budget)
    solution = solved(formulation)
    if math.isinf(best):
        assert solution.status is SolverStatus.INFEASIBLE
        return False
    assert solution.objective == pytest.approx(best)
    assert solution.values is not None
    schedule = formulation.schedule(solution.values)
    verdict = check(problem, schedule, budget)
    assert verdict.violations == ()
    assert verdict.objective == pytest.approx(best)
    start = formulation.start(schedule)
    assert formulation.program.violation(start) < 1e-6
    assert formulation.program.objective(start) == pytest.approx(best)
    return True


@pytest.mark.parametrize("seed", range(6))
def test_optimum_is_the_best_of_all_schedules(seed: int) -> None:
    problem = random_problem(seed, operators=3, in_place=0.7, encodings=0.5, once_only=0.1)
    for budget in budgets(problem, (0.15,)):
        assert_exact(problem, budget)
