"""Statements of memory plans apart from their schedules: the unconstrained step, the gaps, why no plan exists."""

from __future__ import annotations

from loadmaster.models.memory import plain, unconstrained
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.verdict import MemoryCheck
from loadmaster.models.statements import CLOSE, Recomputed, Share, Statements, unexplained
from loadmaster.solvers.solution import relative_gap


def overhead_gap(objective: float, bound: float | None, unconstrained: float) -> float | None:
    """The gap on what the budget costs beyond the step with memory to spare."""
    if bound is None:
        return None
    overhead = objective - unconstrained
    if overhead <= CLOSE * unconstrained:
        return 0.0
    return relative_gap(overhead, max(0.0, bound - unconstrained))


def _recompute(problem: MemoryProblem, plan: MemoryPlan, verdict: MemoryCheck | None) -> Recomputed:
    least = unconstrained.unconstrained_cost(problem)
    if verdict is None:
        return _infeasible(problem, plan, least)
    fields: dict[str, object] = {"unconstrained": least}
    # A bound below the step with memory to spare says nothing of what the budget costs beyond that.
    if plan.bound is None or plan.bound >= least * (1 - CLOSE):
        gap = overhead_gap(verdict.objective, plan.bound, least)
        fields["overhead_gap"] = None if gap is None else Share(gap)
    return Recomputed(fields, least)


def _infeasible(problem: MemoryProblem, plan: MemoryPlan, least: float) -> Recomputed:
    """Recompute the figures of an infeasible plan: exact where an operator alone needs more than the budget. Elsewhere
    they are a relaxation's word, as far as no schedule that is known contradicts it."""
    floor, found = minimum_budget(problem), plan.infeasibility
    fields = {"unconstrained": least, "overhead_gap": None, "method": plan.options.get("method", plan.method)}
    known = [check(problem, make(problem), 0) for make in (plain.formulate, unconstrained.formulate)]
    enough = min((verdict.peak_bytes for verdict in known if _only_too_large(verdict)), default=None)
    if enough is not None and enough <= plan.budget_bytes:
        return Recomputed({**fields, "status": "feasible", "infeasibility": None})
    if found is None:
        return unexplained(fields)
    minimum, wrong = found.minimum_budget_bytes, []
    follows = {"short_bytes": minimum - plan.budget_bytes, "blockers": floor.blockers}
    if floor.budget_bytes > plan.budget_bytes:
        minimum = floor.budget_bytes
        follows |= {"minimum_budget_bytes": minimum, "short_bytes": minimum - plan.budget_bytes, "where": floor.where}
    elif minimum <= plan.budget_bytes or (enough is not None and minimum > enough):
        wrong.append(f"infeasibility.minimum_budget_bytes: the plan says {minimum}, a plan takes {enough}")
    if found.planned_budget_bytes is not None and found.planned_budget_bytes < minimum:
        said = f"the plan says {found.planned_budget_bytes}, below the minimum of {minimum}"
        wrong.append(f"infeasibility.planned_budget_bytes: {said}")
    return Recomputed({**fields, "infeasibility": follows}, wrong=tuple(wrong))


def _only_too_large(verdict: MemoryCheck) -> bool:
    """Return whether a schedule breaks nothing but a budget of no bytes."""
    return all("over the budget of 0" in text for text in verdict.violations)


STATEMENTS = Statements(
    decisions=frozenset({"schedule"}),
    trusted=frozenset(
        {
            "overhead_gap",
            "infeasibility.minimum_budget_bytes",
            "infeasibility.where",
            "infeasibility.planned_budget_bytes",
        }
    ),
    recompute=_recompute,
)
