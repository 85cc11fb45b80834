"""Statements of index plans apart from their choices: the changes that pay, and why no plan exists."""

from __future__ import annotations

from loadmaster.models.index.changes import changes
from loadmaster.models.index.checker import Check
from loadmaster.models.index.limits import lacking, least_us
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.statements import Recomputed, Statements


def _recompute(problem: IndexProblem, plan: IndexPlan, verdict: Check | None) -> Recomputed:
    fields = {"method": plan.options.get("method", plan.method)}
    if verdict is not None:
        chosen = [choice.candidate for choice in plan.choices]
        made = tuple(changes(problem, chosen, plan.budget_bytes))
        return Recomputed({**fields, "changes": made}, least_us(problem))
    missing = lacking(problem, plan.budget_bytes)
    status = "feasible" if missing is None else "infeasible"
    return Recomputed({**fields, "changes": (), "status": status, "infeasibility": missing})


STATEMENTS = Statements(decisions=frozenset({"choices"}), recompute=_recompute)
