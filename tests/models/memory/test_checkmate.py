"""Checkmate as a baseline: the optimum of its PuLP twin, and answers that keep the budget by the checker."""

from __future__ import annotations

import pytest

from loadmaster.models.memory import checkmate, monet
from loadmaster.models.memory.checker import check
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.cbc import optimum
from tests.models.memory.instances import budgets, random_problem, seeds
from tests.models.memory.twins import checkmate_twin

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


# In the last four, what backward reads last stands in the way of what the next stage recomputes.
@pytest.mark.parametrize("seed", seeds((0, 1, 12, 18), (*range(2, 6), 20, 24)))
def test_optimum_is_its_twins_and_never_below_monets(seed: int) -> None:
    problem = random_problem(seed, operators=5, encodings=0.3, once_only=0.1 * (seed % 2))
    for budget in budgets(problem, (0.35, 0.5, 0.65)):
        formulation = checkmate.formulate(problem, budget)
        solution = solve(formulation.program, SolveOptions(gap=0.0), solver="highs")
        twin = optimum(checkmate_twin(problem, budget, formulation.columns.ways))
        assert solution.objective == (None if twin is None else pytest.approx(twin))
        if solution.values is None or solution.objective is None:
            continue
        verdict = check(problem, formulation.schedule(solution.values), budget)
        assert verdict.violations == ()
        assert verdict.objective <= solution.objective + 1e-6
        joint = solve(monet.formulate(problem, budget).program, SolveOptions(gap=0.0), solver="highs")
        assert joint.objective is not None
        assert joint.objective <= solution.objective + 1e-6
