"""Points of the boundary relaxation, carried out as schedules: all that is read has been computed before."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.models.memory import relaxation
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.memory.instances import UNIT, budgets, random_problem, seeds

PLENTY = 1 << 50


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 30)))
def test_a_point_carried_out_is_a_schedule(seed: int) -> None:
    problem = random_problem(seed, operators=7, skips=0.5, encodings=0.4, in_place=0.5, unit_bytes=UNIT)
    budget = budgets(problem, (0.5,))[0]
    last = len(problem.backward)
    for starts in ([1], [1, last // 2], list(range(1, last + 1))):
        relaxed = relaxation.build(problem, budget, starts)
        solution = solve(relaxed.program, SolveOptions(gap=0.0), solver="highs")
        if solution.values is None:
            continue
        schedule = complete(problem, PLENTY, relaxed.decisions(solution.values))
        verdict = check(problem, schedule, PLENTY)
        assert verdict.violations == ()
        # It keeps what the point keeps, but for what nothing reads after all.
        kept = solution.values[np.maximum(relaxed.columns.stored[0], 0)] > 0.5
        stored = set(np.flatnonzero(kept & (relaxed.columns.stored[0] >= 0)).tolist())
        assert set(schedule.stages[0].keep) <= stored
