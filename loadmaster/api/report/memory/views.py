"""Views of memory plans: words, pages, pictures, traces, and what they add to their frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmaster.api.report.extras import Extras
from loadmaster.api.report.memory.pictures import over_time, png
from loadmaster.api.report.memory.plan_page import plan_page, sections
from loadmaster.api.report.memory.view import MemoryView, view
from loadmaster.api.report.memory.words import details, infeasible, summary, verdict
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.views import mps_file
from loadmaster.errors import InputError
from loadmaster.models.memory import banded, plain
from loadmaster.models.memory.bands import everything
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.groups import groups_of
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import reference
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.models.memory.verdict import planned_events
from loadmaster.models.units import show_bytes, show_share

__all__ = [
    "both",
    "chrome_trace",
    "details",
    "frontier_extras",
    "infeasible",
    "mps",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]


def chrome_trace(view: MemoryView) -> dict[str, Any]:
    """The trace document of one planned step."""
    title = view.problem.title or view.problem.name
    return {
        "displayTimeUnit": "ms",
        "traceEvents": planned_events(title, view.check, view.plan.budget_bytes),
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": view.plan.budget_bytes},
    }


def pictures(seen: MemoryView) -> list[Picture]:
    """Memory over the step, for a notebook."""
    return [over_time(seen)]


def both(first: MemoryView, second: MemoryView) -> list[Picture]:
    """Two plans in one picture, the second as a line."""
    return [over_time(first, second)]


def frontier_extras(problem: MemoryProblem, plans: Sequence[MemoryPlan]) -> Extras:
    """The step with memory to spare, that with nothing planned, published results, and what each budget costs."""
    published = {budget: row["best_objective_us"] for budget, row in reference(problem.name).items()}
    unplanned = check(problem, plain.formulate(problem), budget_bytes=0)
    return Extras(
        objective="step",
        baseline=("memory to spare", unconstrained_cost(problem)),
        published=published if problem.objective == "time" else {},
        published_by="a commercial solver, 24 hours on 12 threads",
        header=("over unlimited", "peak", "needs"),
        rows=tuple(_row(plan) for plan in plans),
        unplanned=("keep everything", unplanned.peak_bytes, unplanned.objective),
    )


def _row(plan: MemoryPlan) -> tuple[str, ...]:
    if plan.objective is None:
        least = plan.infeasibility.minimum_budget_bytes if plan.infeasibility else None
        return ("", "", "" if least is None else show_bytes(least))
    over = show_share(plan.objective / plan.unconstrained - 1) if plan.unconstrained else ""
    peak = show_bytes(plan.check["peak_bytes"]) if "peak_bytes" in plan.check else ""
    return (over, peak, "")


# Stages times results: such a program takes half a minute and a hundred megabytes to write.
_MOST_CELLS = 300_000


def mps(seen: MemoryView) -> bytes:
    """The whole program under the plan's budget, no stage taken together with another. Raises InputError if it would be
    too large."""
    problem = seen.problem
    count = problem.stage_count
    cells = count * len(problem.forward)
    if cells > _MOST_CELLS:
        found = f"{count} stages of {len(problem.forward)} results"
        raise InputError("mps", found, "are too many for one file", "Export a smaller problem.")
    starts = range(1, count)  # stage 0, the forward pass, belongs to no slot
    allowed = everything(problem, groups_of(list(starts), count))
    budget_bytes = seen.plan.budget_bytes
    whole = banded.build(problem, budget_bytes, starts, allowed, offload=True, to_the_byte=True)
    return mps_file(whole.program, seen.plan, f"a step within {budget_bytes} bytes, stage by stage")
