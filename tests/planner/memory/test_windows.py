"""Moves where a restriction is too much for its time: a first plan by its bytes, better plans by windows."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain, example
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner import PlanOptions, PlanProgress, plan
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory import squeeze as squeezing
from loadmaster.planner.memory.search import Search, Slots
from loadmaster.planner.memory.squeeze import squeeze
from loadmaster.planner.memory.windows import improve, windowed
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus, StoppedBy

MIB, GIB = 1 << 20, 1 << 30
SLOTS = Slots(30, 4, 6)


@pytest.fixture(scope="module")
def mobilenet() -> MemoryProblem:
    return read_problem(example("mobilenet_v2-b272-recompute"))


@pytest.fixture
def squeezed(mobilenet: MemoryProblem) -> tuple[Search, list[PlanProgress]]:
    """A search that has squeezed its way to a first plan, and what it said."""
    said: list[PlanProgress] = []
    search = Search(mobilenet, 5 * GIB, Effort(PlanOptions(time_limit_s=90), said.append))
    squeeze(search, [SLOTS, Slots(45, 5, 6)], 60.0)
    return search, said


def test_any_plan_is_found_by_its_bytes(squeezed):
    search, said = squeezed
    assert search.best is not None
    assert check(search.problem, search.best, 5 * GIB).ok
    assert any(p.phase.startswith("any plan") for p in said)


def test_less_than_any_plan_takes_is_not_found():
    problem = read_problem(chain(8, MIB))  # the plain step takes ten MiB
    search = Search(problem, 2 * MIB, Effort(PlanOptions(time_limit_s=10)))
    squeeze(search, [SLOTS], 10.0)
    assert search.best is None and not search.infeasible
    schedule, verdict = search.nearest
    assert check(problem, schedule, verdict.peak_bytes).ok and verdict.peak_bytes > 2 * MIB


def test_where_a_window_saves_nothing_the_next_is_wider(squeezed, monkeypatch):
    search, _ = squeezed
    widths: list[int] = []
    monkeypatch.setattr(squeezing, "windowed", lambda *arguments: widths.append(arguments[3] - arguments[2]))
    nothing = Solution(SolverStatus.NO_SOLUTION, StoppedBy.TIME, None, None, None, 0.0, 0.0, 0, "none", "0")
    monkeypatch.setattr(Search, "solved", lambda *_, **__: nothing)
    search.nearest, search.best, search.verdict = (search.best, search.verdict), None, None
    squeeze(search, [SLOTS] * 4, 60.0)
    assert len(widths) == 4 and widths == sorted(set(widths))


def test_windows_make_a_first_plan_better(squeezed):
    search, _ = squeezed
    search.effort.options = PlanOptions(time_limit_s=300)
    before = search.objective
    assert improve(search, SLOTS, 20.0)
    assert search.objective < before
    verdict = check(search.problem, search.best, 5 * GIB)
    assert verdict.ok and verdict.objective == search.objective


def test_a_window_leaves_all_else_as_it_is(squeezed):
    """With nothing free, what is recomputed is exactly what the plan recomputes; with everything, it is the program."""
    search, _ = squeezed
    best = search.best
    restriction = search.restriction(SLOTS, 5 * GIB)
    frozen = windowed(restriction, best, 0, 0)
    columns, values = restriction.start(best)
    options = SolveOptions(time_limit_s=20.0, start_columns=columns, start_values=values)
    found = restriction.decisions(solve(frozen, options).values)
    for stage in range(1, len(best.stages)):
        assert found.computes[stage] == {c.forward for c in best.stages[stage].computes}
    whole = windowed(restriction, best, 0, len(restriction.groups))
    for name in ("lower", "upper"):
        assert np.array_equal(getattr(whole, name), getattr(restriction.program, name))


@pytest.mark.parametrize("status", [SolverStatus.NO_SOLUTION, SolverStatus.INFEASIBLE])
def test_where_restrictions_show_nothing_squeeze_and_windows_plan(mobilenet, monkeypatch, status):
    """Whether a restriction has no plan or only shows none: another one may have."""
    monkeypatch.setattr(Search, "restrict", lambda *_, **__: status)
    phases: list[str] = []
    options = PlanOptions(budget_bytes=5 * GIB, time_limit_s=60, gap=0.1)
    found = plan(mobilenet, options, on_progress=lambda p: phases.append(p.phase))
    assert check(mobilenet, found.schedule, 5 * GIB).objective == found.objective
    assert found.gap <= 0.1
    assert any(phase.startswith("any plan") for phase in phases)
    assert any(phase.startswith("plans, 10 of ") for phase in phases)
