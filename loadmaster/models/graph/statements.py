"""Statements of graph plans, as recomputed by the check: costs of kernels, and reasons why there is no plan."""

from __future__ import annotations

from functools import lru_cache

from loadmaster.models.graph.checker import GraphCheck
from loadmaster.models.graph.costs import Costs, least_us
from loadmaster.models.graph.hot_rows import gather_us, segments
from loadmaster.models.graph.limits import enough_bytes, least_bytes
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.statements import Recomputed, Statements, unexplained


def _recompute(problem: GraphProblem, plan: GraphPlan, verdict: GraphCheck | None) -> Recomputed:
    fields = {"method": plan.options.get("method", plan.method)}
    if verdict is not None:
        return Recomputed({**fields, "kernels": verdict.kernels}, _least_us(problem))
    enough, least, found = enough_bytes(problem), least_bytes(problem), plan.infeasibility
    if enough <= plan.budget_bytes:
        return Recomputed({**fields, "kernels": (), "status": "feasible", "infeasibility": None})
    if found is None:
        return unexplained(fields)
    minimum, wrong = found.minimum_budget_bytes, tuple[str, ...]()
    if not max(least, plan.budget_bytes + 1) <= minimum <= enough:
        said = f"the plan says {minimum}; no plan takes less than {least}, and one takes {enough}"
        wrong = (f"infeasibility.minimum_budget_bytes: {said}",)
    return Recomputed(
        {**fields, "kernels": (), "infeasibility": {"short_bytes": minimum - plan.budget_bytes}}, wrong=wrong
    )


@lru_cache(maxsize=32)
def _least_us(problem: GraphProblem) -> float:
    """Lower bound of all plans' time, us: the kernels of any order at the least, with all hot rows that save time."""
    wanted_rows = sum(rows for rows, saved in segments(problem) if saved > 0)
    steps = (problem.step(order.program) for order in orders(problem.program))
    costs = (Costs(step, problem.statistics, problem.element_bytes, problem.hardware) for step in steps)
    return min(map(least_us, costs)) + gather_us(problem, wanted_rows)


STATEMENTS = Statements(
    decisions=frozenset({"choices", "program", "schedule", "hot_rows"}),
    trusted=frozenset({"infeasibility.minimum_budget_bytes", "infeasibility.where", "infeasibility.largest"}),
    recompute=_recompute,
)
