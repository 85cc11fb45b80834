"""The planner floor: how each kind of problem is solved. ``plan(problem, options)`` is the door.

No torch, no web; every solve runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster.models.canonical import sha256
from loadmaster.models.documents import Document
from loadmaster.models.kinds import Plan, Problem, read_problem
from loadmaster.planner.memory.driver import plan_memory
from loadmaster.planner.options import PlanOptions, PlanProgress
from loadmaster.planner.sweep import Frontier, FrontierPoint, sweep

__all__ = ["Frontier", "FrontierPoint", "PlanOptions", "PlanProgress", "cache_key", "frontier", "plan"]


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
    asked = replace(options or PlanOptions(), **changes)
    return plan_memory(read_problem(problem), asked, on_progress=on_progress, cancelled=cancelled)


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
    """Plan a sweep of budgets side by side. See :func:`loadmaster.planner.sweep.sweep`."""
    return sweep(
        read_problem(problem),
        options or PlanOptions(),
        budgets_bytes=budgets_bytes,
        count=count,
        workers=workers,
        on_progress=on_progress,
        cancelled=cancelled,
    )


def cache_key(problem: Problem, options: PlanOptions) -> str:
    """Equal for requests that have the same answers: problem, budget, options and version of Loadmaster."""
    asked = options.to_document()
    asked["budget_bytes"] = problem.budget_bytes if options.budget_bytes is None else options.budget_bytes
    return sha256({"problem": problem.sha256, "options": asked, "version": loadmaster.__version__})
