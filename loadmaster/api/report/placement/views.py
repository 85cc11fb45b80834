"""Views of placement plans: words, pages, pictures, traces."""

from __future__ import annotations

import json
from collections.abc import Sequence

from loadmaster.api.report.extras import Extras
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.placement.pictures import over_time, pictures, plan_png
from loadmaster.api.report.placement.plan_page import plan_page, sections
from loadmaster.api.report.placement.trace import chrome_trace
from loadmaster.api.report.placement.view import View, view
from loadmaster.api.report.placement.words import details, infeasible, summary, verdict
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import show_bytes, show_share

__all__ = [
    "both",
    "details",
    "frontier_extras",
    "html",
    "infeasible",
    "pictures",
    "png",
    "sections",
    "summary",
    "trace",
    "verdict",
    "view",
]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """A PNG of memory over the step, of what is away, and of the links."""
    return plan_png(seen)


def both(first: View, second: View) -> list[Picture]:
    """Two plans in one picture, the second as a line."""
    return [over_time(first, second)]


def trace(seen: View) -> bytes:
    """The Chrome trace as JSON."""
    return json.dumps(chrome_trace(seen)).encode()


def frontier_extras(problem: PlacementProblem, plans: Sequence[PlacementPlan]) -> Extras:
    """The step with memory to spare, and what each budget costs."""
    return Extras(
        objective="step",
        baseline=("memory to spare", problem.compute_us),
        header=("over unlimited", "loaded", "needs"),
        rows=tuple(_row(plan) for plan in plans),
    )


def _row(plan: PlacementPlan) -> tuple[str, ...]:
    if plan.objective is None:
        least = plan.infeasibility.minimum_budget_bytes if plan.infeasibility else None
        return ("", "", "" if least is None else show_bytes(least))
    over = show_share(plan.objective / plan.compute_us - 1) if plan.compute_us else ""
    return (over, show_bytes(plan.check["loaded_bytes"]) if "loaded_bytes" in plan.check else "", "")
