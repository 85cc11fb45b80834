"""Bounds of plans: what follows from another one, and comparisons of costs that rounding tells apart."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.statements import overhead_gap
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.solvers.solution import relative_gap

# Objectives that differ by this share are the same one, summed in another order.
ROUNDING = 1e-9


def with_bound(plan: MemoryPlan, bound: float | None, problem: MemoryProblem) -> MemoryPlan:
    """Return a plan with another proved bound, and the gaps that follow from it. It may be a restriction's plan, whose
    step with memory to spare is another one."""
    assert plan.objective is not None
    bound = at_most(bound, plan.objective)
    gap, least = relative_gap(plan.objective, bound), unconstrained_cost(problem)
    proved = gap is not None and gap <= float(plan.options.get("gap", 0.0))
    return replace(
        plan,
        bound=bound,
        gap=gap,
        overhead_gap=overhead_gap(plan.objective, bound, least),
        unconstrained=least,
        status="optimal" if proved else "feasible",
    )


def at_most(bound: float | None, objective: float) -> float | None:
    """Round a proved bound up to the objective where only rounding tells them apart."""
    return objective if bound is not None and bound >= objective * (1 - ROUNDING) else bound


def lesser(a: float | None, b: float | None) -> float | None:
    """Return the lesser of two objectives, each of which may be None."""
    values = [v for v in (a, b) if v is not None]
    return min(values) if values else None
