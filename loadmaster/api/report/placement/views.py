"""Views of placement plans: their page, the trace, and what they add to their frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmaster.api.report.extras import Extras
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.placement.links import link_rows
from loadmaster.api.report.placement.pictures import over_time, pictures, png
from loadmaster.api.report.placement.view import PlacementView, view
from loadmaster.api.report.placement.words import WEAR, details, infeasible, longest_waits, summary, verdict, wear
from loadmaster.api.report.words import over, plan_facts
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.trace_events import level, process, run
from loadmaster.models.units import show_bytes, show_cost, show_share

__all__ = [
    "both",
    "chrome_trace",
    "details",
    "frontier_extras",
    "infeasible",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]

_PLANNED, _COMPUTE = 1, 1


def chrome_trace(view: PlacementView) -> dict[str, Any]:
    """The trace document of one planned step."""
    problem, found, budget_bytes = view.problem, view.run, view.plan.budget_bytes
    rows = link_rows(problem, found)
    tracks = {_COMPUTE: "compute"} | {_COMPUTE + 1 + n: row.label for n, row in enumerate(rows)}
    events = process(_PLANNED, f"{problem.title or problem.name} (planned)", tracks)
    for i, operator in enumerate(problem.operators):
        start, wait, size = float(found.starts_us[i]), float(found.stall_us[i]), int(found.resident_bytes[i])
        if wait > 0:
            events.append(run(_PLANNED, _COMPUTE, "wait for copies", "stall", start - wait, wait))
        details = {"operator": i, "op": operator.op, "resident_bytes": size}
        events.append(run(_PLANNED, _COMPUTE, operator.words, "operator", start, operator.time_us, **details))
        events.append(level(_PLANNED, "memory", start - wait, resident_bytes=size))
    for n, row in enumerate(rows):
        for busy in row.copies:
            block = problem.blocks[busy.copy.block]
            what = {"block": busy.copy.block, "role": block.role, "size_bytes": block.size_bytes}
            length = busy.end_us - busy.start_us
            events.append(run(_PLANNED, _COMPUTE + 1 + n, block.name, busy.copy.what, busy.start_us, length, **what))
    for at_us in (0.0, found.last_us):
        events.append(level(_PLANNED, "budget", at_us, budget_bytes=budget_bytes))
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": budget_bytes},
    }


_MOST_BLOCKS = 15
_MOST_WAITS = 10


def plan_page(view: PlacementView) -> str:
    """The report of a feasible plan."""
    lead = f"{view.problem.title or view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    return page(view.plan.name, lead, sections(view))


def sections(view: PlacementView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    found = [_facts(view), *map(shown, pictures(view))]
    if view.away:
        found += ["<h2>What moves most</h2>", _blocks(view)]
        found += ["<h2>What the tiers take</h2>", html_table(WEAR, wear(view), numbers=(1, 2))]
    if waits := longest_waits(view, _MOST_WAITS):
        found += ["<h2>The longest waits</h2>", html_table(["operator", "waits"], waits, numbers=(1,))]
    return found


def _facts(view: PlacementView) -> str:
    plan, check = view.plan, view.check
    # Of a plan that moves nothing there is nothing to say of copies.
    moves = [
        ("waiting for copies", show_cost(view.run.total_stall_us, "us"), "in every step"),
        ("stored", show_bytes(check.stored_bytes), f"{len(view.moves.stores)} copies to a tier"),
        ("loaded", show_bytes(check.loaded_bytes), f"{len(view.moves.absences)} copies from a tier"),
    ]
    return facts(
        plan_facts(
            view, ("step", f"{over(plan, plan.compute_us)} unlimited memory"), moves if view.moves.absences else []
        )
    )


def _blocks(view: PlacementView) -> str:
    blocks = view.problem.blocks
    rows = [
        [blocks[a.block].name, blocks[a.block].role, show_bytes(a.size_bytes), str(a.absences), str(a.positions)]
        for a in view.away[:_MOST_BLOCKS]
    ]
    return html_table(["block", "role", "size", "times away", "operators meanwhile"], rows, numbers=(2, 3, 4))


def both(first: PlacementView, second: PlacementView) -> list[Picture]:
    """Two plans in one picture, the second as a line."""
    return [over_time(first, second)]


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
