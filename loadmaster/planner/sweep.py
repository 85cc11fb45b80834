"""The frontier: the best step for each of several budgets, planned side by side, monotone by construction.

A plan for a small budget is a plan for a larger one, and a bound for a large budget is a bound for a smaller one; both
are passed along before the points are returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from loadmaster.errors import CancelledError, InputError, LimitReachedError
from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.memory.driver import plan_memory, with_bound
from loadmaster.planner.options import PlanOptions, PlanProgress


@dataclass(frozen=True)
class FrontierPoint:
    """One budget and its plan, which may be infeasible."""

    budget_bytes: int
    plan: MemoryPlan


@dataclass(frozen=True)
class Frontier:
    """The points by ascending budget; ``undecided`` budgets have neither a plan nor a proof that there is none."""

    name: str
    points: tuple[FrontierPoint, ...]
    undecided: tuple[int, ...] = ()


def default_budgets(problem: MemoryProblem, count: int) -> list[int]:
    """``count`` budgets from a little above the provable minimum to the plain step's peak, evenly spread.

    Raises:
        InputError: fewer than two budgets.
    """
    if count < 2:
        raise InputError("count", count, "makes no frontier", "Ask for two budgets or more.")
    low, high = 1.1 * minimum_budget(problem).budget_bytes, plain.peak_bytes(problem)
    low = min(low, high)
    return [round(low + (high - low) * n / (count - 1)) for n in range(count)]


def sweep(
    problem: MemoryProblem,
    options: PlanOptions,
    *,
    budgets_bytes: Sequence[int] | None = None,
    count: int = 6,
    workers: int = 2,
    on_progress: Callable[[PlanProgress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Frontier:
    """Plan every budget, ``workers`` at a time. The phase of a report names its budget.

    Raises:
        InputError: no budgets, or a negative one.
        CancelledError: cancelled before any plan was found.
    """
    budgets = sorted(set(default_budgets(problem, count) if budgets_bytes is None else budgets_bytes))
    if not budgets or budgets[0] < 0:
        raise InputError("budgets_bytes", budgets[:1], "are no budgets", "Give one or more sizes in bytes.")
    if workers < 1:
        raise InputError("workers", workers, "is no number of workers", "Give 1 or more.")
    lock = threading.Lock()

    def point(budget: int) -> MemoryPlan | None:
        def report(progress: PlanProgress) -> None:
            if on_progress is not None:
                with lock:
                    on_progress(replace(progress, phase=f"{budget} bytes: {progress.phase}"))

        asked = replace(options, budget_bytes=budget)
        try:
            return plan_memory(problem, asked, on_progress=report, cancelled=cancelled)
        except (LimitReachedError, CancelledError):
            return None

    with ThreadPoolExecutor(workers) as pool:
        plans = dict(zip(budgets, pool.map(point, budgets), strict=True))
    if (
        cancelled is not None
        and cancelled()
        and not any(p is not None and p.schedule is not None for p in plans.values())
    ):
        raise CancelledError("cancelled before a plan was found")
    known = _monotone(problem, plans)
    return Frontier(
        problem.name,
        tuple(FrontierPoint(budget, found) for budget, found in sorted(known.items())),
        tuple(budget for budget in budgets if budget not in known),
    )


def _monotone(problem: MemoryProblem, plans: dict[int, MemoryPlan | None]) -> dict[int, MemoryPlan]:
    """Hand plans up to larger budgets where they are better there, and bounds down to smaller ones."""
    known: dict[int, MemoryPlan] = {}
    best: MemoryPlan | None = None
    for budget, found in sorted(plans.items()):
        objective = found.objective if found is not None else None
        if best is not None and best.objective is not None and (objective is None or objective > best.objective):
            found = _moved(problem, best, budget, found.bound if found is not None else None)
        if found is not None:
            known[budget] = found
            best = found if found.schedule is not None else best
    bound: float | None = None
    for budget in sorted(known, reverse=True):
        plan = known[budget]
        if plan.schedule is None:
            continue
        if bound is not None and (plan.bound is None or bound > plan.bound):
            known[budget] = plan = with_bound(plan, bound, problem)
        bound = plan.bound if plan.bound is not None else bound
    return known


def _moved(problem: MemoryProblem, plan: MemoryPlan, budget_bytes: int, bound: float | None) -> MemoryPlan:
    """A smaller budget's plan under a larger one."""
    assert plan.schedule is not None
    verdict = check(problem, plan.schedule, budget_bytes)
    return with_bound(replace(plan, budget_bytes=budget_bytes, check=verdict.summary()), bound, problem)
