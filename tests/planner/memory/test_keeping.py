"""What a plan leaves of the budget is filled: results stay that it computed again, and no plan gets worse."""

from __future__ import annotations

import math

import pytest

from loadmaster.models.memory import baselines
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.checkpoints import at_narrow_places, formulate
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory.checkpoint_search import keep_more
from loadmaster.planner.memory.eviction_search import evict
from loadmaster.planner.memory.search import Search
from loadmaster.planner.options import PlanOptions
from tests.models.memory.instances import UNIT, budgets, loops, random_problem, seeds

LONG_S = 3600.0
PLENTY = 1 << 60


def search_of(problem: MemoryProblem, budget_bytes: int) -> Search:
    return Search(problem, budget_bytes, Effort(PlanOptions(time_limit_s=LONG_S), None, None))


def all_run_again(problem: MemoryProblem, budget_bytes: int) -> Search:
    """A search whose plan runs all segments again."""
    segment = at_narrow_places(problem, math.isqrt(len(problem.forward)))
    ways = baselines.fastest_backward(problem)
    search = search_of(problem, budget_bytes)
    search.adopt(formulate(problem, budget_bytes, ways, segment, int(segment.max()) + 1), "checkpoints")
    return search


def test_with_plenty_of_room_nothing_is_computed_again() -> None:
    search = all_run_again(loops(4, 20), PLENTY)
    assert search.verdict is not None and search.verdict.recomputed > 0
    keep_more(search, LONG_S)
    assert search.verdict.recomputed == 0


@pytest.mark.parametrize("left", [1, 5, 12])
def test_results_stay_until_the_room_is_used_up(left: int) -> None:
    """All are of one size and one time: a result stays for each that there is room for."""
    problem = loops(4, 20)
    tight = all_run_again(problem, PLENTY).verdict
    assert tight is not None
    search = all_run_again(problem, tight.peak_bytes + left * UNIT)
    keep_more(search, LONG_S)
    assert search.verdict is not None and search.verdict.peak_bytes <= tight.peak_bytes + left * UNIT
    assert search.verdict.recomputed <= tight.recomputed - left


@pytest.mark.parametrize("seed", seeds(range(6), range(6, 40)))
def test_no_plan_gets_worse_or_breaks_its_budget(seed: int) -> None:
    problem = random_problem(seed, operators=12, skips=0.4, encodings=0.3, once_only=0.1)
    for budget_bytes in budgets(problem, (0.3, 0.5, 0.7)):
        search = search_of(problem, budget_bytes)
        evict(search, LONG_S, LONG_S)
        before = search.objective
        keep_more(search, LONG_S)
        if before is None:
            assert search.best is None
            continue
        assert search.best is not None and search.objective is not None and search.objective <= before
        assert check(problem, search.best, budget_bytes).ok


def test_without_time_the_plan_stays_as_it_is() -> None:
    search = all_run_again(loops(3, 10), PLENTY)
    plan = search.best
    keep_more(search, -1.0)
    assert search.best is plan
