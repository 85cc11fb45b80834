"""Moves where a restriction is too much for its time: a first plan by its bytes, better ones in its neighbourhood."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain, example
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import PlanOptions, PlanProgress, plan
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory import driver, feasibility
from loadmaster.planner.memory.feasibility import find_feasible
from loadmaster.planner.memory.large_neighbourhood import improve, outside_fixed
from loadmaster.planner.memory.search import Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus, StoppedBy

MIB, GIB = 1 << 20, 1 << 30
SLOTS = Slots(30, 4, 6)


@pytest.fixture(scope="module")
def mobilenet() -> MemoryProblem:
    return read_problem(example("mobilenet_v2-b272-recompute"))


@pytest.fixture
def first_plan(mobilenet: MemoryProblem) -> tuple[Search, list[PlanProgress]]:
    """A search that has found a first plan by its bytes, and what it said."""
    said: list[PlanProgress] = []
    search = Search(mobilenet, 5 * GIB, Effort(PlanOptions(time_limit_s=90), said.append))
    find_feasible(search, [SLOTS, Slots(45, 5, 6)], 60.0)
    return search, said


def test_any_plan_is_found_by_its_bytes(first_plan):
    search, said = first_plan
    assert search.best is not None
    assert check(search.problem, search.best, 5 * GIB).ok
    assert any(p.phase.startswith("any plan") for p in said)


def test_less_than_any_plan_takes_is_not_found():
    problem = read_problem(chain(8, MIB))  # the plain step takes ten MiB
    search = Search(problem, 2 * MIB, Effort(PlanOptions(time_limit_s=10)))
    find_feasible(search, [SLOTS], 10.0)
    assert search.best is None and not search.infeasible
    schedule, verdict = search.nearest
    assert check(problem, schedule, verdict.peak_bytes).ok and verdict.peak_bytes > 2 * MIB


@pytest.mark.slow
def test_where_a_neighbourhood_saves_nothing_the_next_is_wider(first_plan, monkeypatch):
    search, _ = first_plan
    widths: list[int] = []
    monkeypatch.setattr(feasibility, "outside_fixed", lambda *arguments: widths.append(arguments[3] - arguments[2]))
    nothing = Solution(SolverStatus.NO_SOLUTION, StoppedBy.TIME, None, None, None, 0.0, 0.0, 0, "none", "0")
    monkeypatch.setattr(Search, "solved", lambda *_, **__: nothing)
    search.nearest, search.best, search.verdict = (search.best, search.verdict), None, None
    find_feasible(search, [SLOTS] * 4, 60.0)
    assert len(widths) == 4 and widths == sorted(set(widths))


@pytest.mark.slow
def test_neighbourhoods_make_a_first_plan_better(first_plan):
    search, _ = first_plan
    search.effort.options = PlanOptions(time_limit_s=300)
    before = search.objective
    assert improve(search, SLOTS, 20.0)
    assert search.objective < before
    verdict = check(search.problem, search.best, 5 * GIB)
    assert verdict.ok and verdict.objective == search.objective


def test_a_neighbourhood_leaves_all_else_as_it_is(first_plan):
    """With nothing free, what is recomputed is exactly what the plan recomputes; with everything, it is the program."""
    search, _ = first_plan
    best = search.best
    restriction = search.restriction(SLOTS, 5 * GIB)
    frozen = outside_fixed(restriction, best, 0, 0)
    columns, values = restriction.start(best)
    options = SolveOptions(time_limit_s=20.0, start_columns=columns, start_values=values)
    found = restriction.decisions(solve(frozen, options).values)
    for stage in range(1, len(best.stages)):
        assert found.computes[stage] == {c.forward for c in best.stages[stage].computes}
    whole = outside_fixed(restriction, best, 0, len(restriction.groups))
    for name in ("lower", "upper"):
        assert np.array_equal(getattr(whole, name), getattr(restriction.program, name))


@pytest.mark.slow
@pytest.mark.parametrize("status", [SolverStatus.NO_SOLUTION, SolverStatus.INFEASIBLE])
def test_where_restrictions_show_nothing_the_other_moves_plan(mobilenet, monkeypatch, status):
    """Whether a restriction has no plan or only shows none: another one may have."""
    monkeypatch.setattr(Search, "restrict", lambda *_, **__: status)
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    # Not by what is reported: of quick solves, nothing is.
    moves: list[str] = []
    for move in (driver.find_feasible, driver.improve):

        def noted(*given, of=move, **options):
            moves.append(of.__name__)
            return of(*given, **options)

        monkeypatch.setattr(driver, move.__name__, noted)
    found = plan(mobilenet, PlanOptions(budget_bytes=5 * GIB, time_limit_s=600, gap=0.04))
    assert check(mobilenet, found.schedule, 5 * GIB).objective == found.objective
    assert found.gap <= 0.04
    assert {"find_feasible", "improve"} <= set(moves)
