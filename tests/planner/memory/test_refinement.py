"""Boundaries put where a relaxation cannot be carried out: bounds that no schedule beats, and plans as good as them."""

from __future__ import annotations

import pytest

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import example, reference
from loadmaster.planner import PlanOptions
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory.eviction_search import evict
from loadmaster.planner.memory.refinement import Refinement, worst_stage
from loadmaster.planner.memory.search import Search
from tests.models.memory.instances import seeds, tight_cases

GIB = 1 << 30


@pytest.mark.parametrize("seed", seeds((0, 3), range(4, 40)))
def test_no_schedule_beats_a_refined_bound(seed: int) -> None:
    """Of all the schedules there are; and what is carried out within the budget is the best of them."""
    problem, cases = tight_cases(seed)
    for budget, best in [case for case in cases if case[1] < float("inf")][:3]:
        search = Search(problem, budget, Effort(PlanOptions(time_limit_s=120, gap=0.0)))
        refinement = Refinement(search, [1], search.relax([1], 60.0, 0.0))
        first = search.bound
        refinement.go_on(100.0)
        assert first is not None and search.bound is not None
        assert first <= search.bound <= best * (1 + 1e-6)
        assert not search.infeasible
        if search.best is not None:
            assert check(problem, search.best, budget).ok
            assert search.objective is not None and search.objective >= best * (1 - 1e-6)


def test_the_worst_stage_is_divided_off() -> None:
    """Stage 5 alone is no group to divide; 2 and 3 are as bad as each other, and 3 comes last."""
    taken = {0: 50, 1: 9, 2: 20, 3: 20, 4: 12, 5: 40, 6: 17}
    groups = [(1, 4), (5, 5), (6, 8)]
    assert worst_stage(taken, 10, groups) == 3
    assert worst_stage(taken | {3: 18}, 10, groups) == 2
    assert worst_stage(taken | {8: 21}, 10, groups) == 8
    assert worst_stage(taken, 20, groups) is None


@pytest.mark.slow
@pytest.mark.parametrize(("gib", "share"), [(8, 0.985), (9, 0.995)])
def test_a_u_net_is_proved_close_to_its_published_optimum(gib: int, share: float) -> None:
    """A day of a commercial solver on the whole formulation: one boundary proves 0.963 and 0.972 of it."""
    problem = read_problem(example("unet-b11-full"))
    best = reference(problem.name)[gib * GIB]["best_objective_us"]
    search = Search(problem, gib * GIB, Effort(PlanOptions(time_limit_s=400, gap=0.01)))
    evict(search, 20.0, 20.0)
    refinement = Refinement(search, [1], search.relax([1], 60.0))
    refinement.go_on(300.0)
    assert search.bound is not None
    assert share * best <= search.bound <= best * (1 + 1e-6)
    assert len(refinement.starts) <= 8
