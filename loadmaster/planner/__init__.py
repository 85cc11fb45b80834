"""The planner floor: how each kind of problem is solved. ``plan(problem, options)`` is the door.

No torch, no web; every solve runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster.errors import InputError
from loadmaster.models.canonical import sha256
from loadmaster.models.documents import Document
from loadmaster.models.kinds import KINDS, Plan, Problem, expect_budgets, read_problem
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.options import METHODS_OF, PlanOptions, PlanProgress
from loadmaster.planner.sweep import Frontier, FrontierPoint, sweep

__all__ = ["Frontier", "FrontierPoint", "PlanOptions", "PlanProgress", "cache_key", "frontier", "plan", "settled"]

# Kind -> the module and function that plan it; imported when the first problem of the kind comes.
PLANNERS = {
    "memory": ("loadmaster.planner.memory.driver", "plan_memory"),
    "collective": ("loadmaster.planner.collective.driver", "plan_collective"),
}


def plan(
    problem: Problem | Document | str | Path,
    options: PlanOptions | None = None,
    *,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    **changes: Any,
) -> Plan:
    """Plan a problem: a typed one, a document, or the path of one.

    Args:
        options: see :class:`PlanOptions`; single ones may be given by keyword (``budget_bytes=8 << 30``).
        on_progress: called with each report, in this thread.
        cancelled: asked several times a second; once true, the best plan so far is returned.

    Returns:
        A checked plan, or an infeasible one that says what to relax.

    Raises:
        InputError: the problem or an option cannot be used.
        LimitReachedError: the limit came before any plan.
        CancelledError: cancelled before any plan.
        SolverError: a solve broke.
    """
    typed = read_problem(problem)
    if typed is problem:
        KINDS[typed.kind].expect(typed)
    asked = settled(typed, replace(options or PlanOptions(), **changes))
    module, function = PLANNERS[typed.kind]
    found: Plan = getattr(import_module(module), function)(typed, asked, on_progress=on_progress, cancelled=cancelled)
    return found


def frontier(
    problem: Problem | Document | str | Path,
    options: PlanOptions | None = None,
    *,
    budgets_bytes: Sequence[int] | None = None,
    count: int = 6,
    workers: int = 2,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Frontier:
    """Plan a sweep of budgets side by side. See :func:`loadmaster.planner.sweep.sweep`.

    Raises:
        InputError: the problem is of a kind that has no budget; and as there.
    """
    typed = read_problem(problem)
    expect_budgets(typed.kind)
    assert isinstance(typed, MemoryProblem), "the one kind with a budget"
    return sweep(
        typed,
        options or PlanOptions(),
        budgets_bytes=budgets_bytes,
        count=count,
        workers=workers,
        on_progress=on_progress,
        cancelled=cancelled,
    )


def settled(problem: Problem, options: PlanOptions) -> PlanOptions:
    """The options as they stand for this problem: with its own budget where they give none.

    Raises:
        InputError: a method of another kind, or a budget for a kind that has none.
    """
    kind, methods = KINDS[problem.kind], METHODS_OF[problem.kind]
    if options.method not in methods:
        raise InputError(
            "options.method", options.method, f"is no method for {kind.name}", f"Use one of {', '.join(methods)}."
        )
    if kind.budget_bytes is None:
        if options.budget_bytes is not None:
            raise InputError(
                "options.budget_bytes", options.budget_bytes, f"means nothing to {kind.name}", "Leave it out."
            )
        return options
    return options if options.budget_bytes is not None else replace(options, budget_bytes=kind.budget_bytes(problem))


def cache_key(problem: Problem, options: PlanOptions) -> str:
    """Equal for requests that have the same answers: problem, budget, options and version of Loadmaster."""
    asked = settled(problem, options).to_document()
    return sha256({"problem": problem.sha256, "options": asked, "version": loadmaster.__version__})
