"""Solvers that die under the planner: the plan in hand is the answer, and only a run without one is an error."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest

from loadmaster import planner
from loadmaster.errors import LoadmasterError, SolverError, SolverKilledError
from loadmaster.models.kinds import check_plan
from loadmaster.models.kinds import read_problem as read_problem_of_any_kind
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.planner import PlanProgress
from loadmaster.planner.collective import solves
from loadmaster.planner.collective.one_size import OneSize
from loadmaster.planner.memory import driver, search
from loadmaster.solvers import process
from loadmaster.solvers.solution import Incumbent, Solution
from tests.api.collective_by_hand import ring_document
from tests.models.memory.instances import budgets, random_problem

MIB = 1 << 20


class Killed(process.RunningSolve):
    """A solve whose process is killed at its first point, whether a report brings the point or the answer does."""

    kills = 0

    def _receive(self, message: Any) -> Solution | LoadmasterError | None:
        if isinstance(message, Solution) and message.values is not None and message.objective is not None:
            message = Incumbent(message.objective, message.values)
        answer = super()._receive(message)
        if self.incumbent() is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGKILL)
            Killed.kills += 1
        return answer


def test_points_of_solvers_that_are_killed_become_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the memory of the plain step: no plan is there before a solver finds one."""
    monkeypatch.setattr(process, "RunningSolve", Killed)
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    monkeypatch.setattr(driver, "least_planned", lambda *_: None)
    problem = read_problem(chain(8, MIB))
    done: list[float | None] = []

    def note(progress: PlanProgress) -> None:
        if progress.message == "done":
            done.append(progress.objective)

    plan = planner.plan(
        problem, budget_bytes=6 * MIB, gap=0.0, time_limit_s=240.0, on_progress=note, cancelled=lambda: any(done)
    )
    assert Killed.kills > 0
    assert plan.status in ("feasible", "optimal")
    assert check_plan(problem.with_budget(6 * MIB), plan).ok


def fail(*_: Any, **__: Any) -> Solution:
    raise SolverError("The highs process died.")


def test_a_solver_that_fails_ends_the_run_with_the_plan_in_hand(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Eviction finds a plan without a solver, and the step with memory to spare is all that bounds it."""
    monkeypatch.setattr(search, "solve", fail)
    problem = read_problem(chain(8, MIB))
    plan = planner.plan(problem, budget_bytes=6 * MIB, gap=0.0, time_limit_s=30.0)
    assert (plan.status, plan.stopped_by) == ("feasible", "crash")
    assert plan.bound == pytest.approx(unconstrained_cost(problem))
    assert check_plan(problem.with_budget(6 * MIB), plan).ok
    assert "The highs process died. The plan in hand is kept." in caplog.text


@pytest.mark.parametrize("failing", range(3))
def test_a_solve_that_fails_is_no_answer_and_others_go_on(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: of the bound, of plans, of the exact formulation."""
    calls = []
    solve = search.solve

    def once(*args: Any, **options: Any) -> Solution:
        calls.append(1)
        return fail() if len(calls) == failing + 1 else solve(*args, **options)

    monkeypatch.setattr(search, "solve", once)
    problem = random_problem(9, operators=5, skips=0.5, in_place=0.5, unit_bytes=MIB)
    plan = planner.plan(problem, budget_bytes=budgets(problem, (0.3,))[0], gap=0.0, time_limit_s=60.0)
    assert len(calls) > failing
    assert (plan.status, plan.stopped_by) == ("optimal", "gap")


def test_a_collective_is_planned_where_its_solvers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """List scheduling needs no solver; CP-SAT, which is to better its schedules, fails."""
    calls = []

    def failing(*_: Any, **__: Any) -> Solution:
        calls.append(1)
        return fail()

    monkeypatch.setattr(solves, "solve", failing)
    problem = read_problem_of_any_kind(ring_document())
    monkeypatch.setattr(OneSize, "over", lambda self, share: self.effort.over())
    plan = planner.plan(problem, gap=0.0, time_limit_s=3600.0)
    assert calls
    assert plan.stopped_by in ("crash", "gap")
    assert check_plan(problem, plan).ok


def test_a_solver_that_fails_before_any_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "solve", fail)
    monkeypatch.setattr(driver, "evict", lambda *_: None)
    with pytest.raises(SolverError, match="died"):
        planner.plan(read_problem(chain(8, MIB)), budget_bytes=6 * MIB, time_limit_s=30.0)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_solver_that_is_killed_is_started_once_more(monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    """Once a run, where it had found nothing yet: the second time, it is an error or the plan in hand."""
    from loadmaster.planner.effort import Effort
    from loadmaster.planner.options import PlanOptions

    done = object()
    calls: list[object] = []

    def solve(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        if len(calls) <= kills:
            raise SolverKilledError("The highs process was killed from outside.")
        return done

    monkeypatch.setattr("loadmaster.planner.effort.solve", solve)
    monkeypatch.setattr(Effort, "count", lambda self, solution: None)
    effort = Effort(PlanOptions())

    def ask() -> object:
        return effort.solved(None, lambda: None, gap=0.0)  # type: ignore[arg-type]

    if kills == 1:
        assert ask() is done
    else:
        with pytest.raises(SolverKilledError):
            ask()
    assert len(calls) == 2
