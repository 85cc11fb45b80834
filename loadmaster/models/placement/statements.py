"""Statements of placement plans apart from their moves: the step with memory to spare, and why no plan exists."""

from __future__ import annotations

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.checker import Check
from loadmaster.models.placement.limits import least_bytes, least_us, peak_bytes
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.statements import Recomputed, Statements, unexplained

_FULL = ", with all tiers full"


def _recompute(problem: PlacementProblem, plan: PlacementPlan, verdict: Check | None) -> Recomputed:
    fields = {"compute_us": problem.compute_us, "method": plan.options.get("method", plan.method)}
    if verdict is not None:
        return Recomputed(fields, least_us(problem, plan.budget_bytes))
    peak, (least, at) = peak_bytes(problem), least_bytes(problem)
    if peak <= plan.budget_bytes:
        return Recomputed({**fields, "status": "feasible", "infeasibility": None})
    if plan.infeasibility is None:
        return unexplained(fields)
    # An operator that needs more by itself says how much; what tiers lack takes a search to say.
    minimum, where = plan.infeasibility.minimum_budget_bytes, plan.infeasibility.where
    least = max(least, plan.budget_bytes + 1)
    follows: dict[str, object] = {}
    if not where.endswith(_FULL):
        minimum = follows["minimum_budget_bytes"] = least
    crowded = int(Accesses(problem).live_bytes.argmax())
    places = [f"operator {i} ({problem.operators[i].words})" for i in (at, crowded)]
    follows["where"] = where if where.removesuffix(_FULL) in places else places[0]
    follows["short_bytes"] = minimum - plan.budget_bytes
    said = f"infeasibility.minimum_budget_bytes: the plan says {minimum}, which is not in {least}..{peak}"
    return Recomputed({**fields, "infeasibility": follows}, wrong=() if least <= minimum <= peak else (said,))


STATEMENTS = Statements(
    decisions=frozenset({"moves"}),
    trusted=frozenset({"infeasibility.minimum_budget_bytes"}),
    recompute=_recompute,
)
