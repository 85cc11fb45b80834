"""Statements of partition plans apart from their splits: what moves, and why no plan exists."""

from __future__ import annotations

from loadmaster.models.partition.checker import Check
from loadmaster.models.partition.limits import least_bytes, least_us
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.statements import Recomputed, Statements, unexplained


def _recompute(problem: PartitionProblem, plan: PartitionPlan, verdict: Check | None) -> Recomputed:
    fields = {"method": plan.options.get("method", plan.method)}
    if verdict is not None:
        least = 0.0 if problem.objective == "bytes" else least_us(problem)
        return Recomputed({**fields, "redistributions": verdict.redistributions}, least)
    found = plan.infeasibility
    if found is None:
        return unexplained(fields)
    minimum, least_budget, wrong = found.minimum_budget_bytes, least_bytes(problem), tuple[str, ...]()
    if minimum < max(least_budget, plan.budget_bytes + 1):
        said = f"the plan says {minimum}; the budget is {plan.budget_bytes}, and no plan takes less than {least_budget}"
        wrong = (f"infeasibility.minimum_budget_bytes: {said}",)
    follows = {"short_bytes": minimum - plan.budget_bytes}
    return Recomputed({**fields, "redistributions": (), "infeasibility": follows}, wrong=wrong)


STATEMENTS = Statements(
    decisions=frozenset({"splits"}),
    trusted=frozenset(
        f"infeasibility.{name}" for name in ("minimum_budget_bytes", "where", "largest", "planned_budget_bytes")
    ),
    recompute=_recompute,
)
