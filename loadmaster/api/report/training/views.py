"""Views of training plans: their page, the trace, the table of groups, and what they add to their frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.extras import Extras
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.picture import Picture
from loadmaster.api.report.training.pictures import over_time, pictures, png
from loadmaster.api.report.training.view import TrainingView, view
from loadmaster.api.report.training.words import (
    GROUPS,
    MOVES,
    PEAK,
    POINTS,
    WAITS,
    WEAR,
    details,
    infeasible,
    move_rows,
    peak_rows,
    place_rows,
    point_rows,
    summary,
    verdict,
    wait_rows,
    wear_rows,
)
from loadmaster.api.report.words import PRICES, measured_facts, over, plan_facts, price_words
from loadmaster.models.trace_events import level, process, run
from loadmaster.models.training.limits import peak_bytes, plain_us
from loadmaster.models.training.plan import Stay, TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.units import show_bytes, show_cost, show_share

__all__ = [
    "both",
    "chrome_trace",
    "csv",
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

_PLANNED, _DEVICE = 1, 1
_MOST_WAITS = 10


def chrome_trace(view: TrainingView) -> dict[str, Any]:
    """The trace document of one planned step."""
    problem, check = view.problem, view.check
    rows = view.rows()
    tracks = {_DEVICE + n: row.label for n, row in enumerate(rows)} | {_DEVICE: "device"}
    events = process(_PLANNED, f"{problem.title or problem.name} (planned)", tracks)
    waits = {event: wait for event, wait in view.waits}
    for event in view.events:
        if wait := waits.get(event):
            start_us = event.start_us - wait
            events.append(run(_PLANNED, _DEVICE, "wait for copies and the host", "stall", start_us, wait))
        number = {"group" if event.what == "update" else "phase": event.number}
        events.append(run(_PLANNED, _DEVICE, event.words, event.what, event.start_us, event.duration_us, **number))
    for start_us, phase in view.held:
        sizes = {f"{role.name}_bytes": int(role.sizes[phase]) for role in view.roles}
        events.append(level(_PLANNED, "memory", start_us, **sizes))
    for n, row in enumerate(rows[1:], start=1):
        for busy in row.busy:
            length_us = busy.end_us - busy.start_us
            events.append(run(_PLANNED, _DEVICE + n, busy.words, row.label, busy.start_us, length_us))
    for at_us in (0.0, check.step_us):
        events.append(level(_PLANNED, "budget", at_us, budget_bytes=view.plan.budget_bytes))
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {"problem_sha256": view.plan.problem_sha256, "budget_bytes": view.plan.budget_bytes},
    }


def plan_page(view: TrainingView) -> str:
    """The report of a feasible plan."""
    lead = f"{view.problem.title or view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    return page(view.plan.name, lead, sections(view))


def sections(view: TrainingView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    found = [_facts(view), *map(shown, pictures(view))]
    found += ["<h2>How layers run</h2>", html_table(POINTS, point_rows(view), numbers=(2, 3, 4, 5))]
    found += ["<h2>Where parameters are</h2>", html_table(GROUPS, place_rows(view), numbers=(1, 2, 3, 4))]
    found += ["<h2>What the peak is made of</h2>", html_table(PEAK, peak_rows(view), numbers=(1, 2))]
    if moves := move_rows(view):
        found += ["<h2>What moves</h2>", html_table(MOVES, moves, numbers=(1, 2))]
    if wear := wear_rows(view):
        found += ["<h2>What the disk takes</h2>", html_table(WEAR, wear, numbers=(1, 2, 3))]
    if prices := view.plan.prices:
        rows = [price_words(price, view.plan.unit) for price in prices]
        found += ["<h2>What more would give</h2>", html_table(PRICES, rows, numbers=(1, 2))]
    if waits := wait_rows(view, _MOST_WAITS):
        found += ["<h2>The longest waits</h2>", html_table(WAITS, waits, numbers=(1,))]
    return found


def _facts(view: TrainingView) -> str:
    plan, check = view.plan, view.check
    # Of a plan that moves nothing there is nothing to say of copies.
    moves = [
        ("waiting", show_cost(check.stall_us, "us"), "for copies and the host, in every step"),
        ("stored", show_bytes(check.stored_bytes), f"to {view.problem.host.name}"),
        ("loaded", show_bytes(check.loaded_bytes), f"from {view.problem.host.name}"),
        ("host memory", show_bytes(check.host_bytes), f"{show_cost(check.host_updates_us, 'us')} of updates"),
        ("files", show_bytes(check.disk_bytes), "written and read in every step"),
    ]
    if not check.disk_bytes:
        moves.pop()
    step = ("step", f"{over(plan, plan.plain_us)} the step with everything on the device")
    measured = measured_facts(view.measured, check.peak_bytes, check.step_us)
    return facts(plan_facts(view, step, [*(moves if view.timeline.copies else []), *measured]))


def csv(seen: TrainingView) -> bytes:
    """A row for every group: its layers and bytes, where it is stored and updated, and when it moves."""
    header = ["group", "layers", "weight_bytes", "state_bytes", "weights", "state", "update", "update_after"]
    header += ["update_stay", "gradient_gone_at", "copy_load_at", "stays"]
    rows = (
        [
            *(group.name, " ".join(map(str, group.layers)), group.weight_bytes, group.state_bytes),
            *(at.weights, at.state, at.update, _known(at.update_after)),
            "" if at.update_stay is None else _stay(at.update_stay),
            *(_known(at.gradient_gone_at), _known(at.copy_load_at), " ".join(map(_stay, at.stays))),
        ]
        for group, at in zip(seen.problem.groups, seen.schedule.groups, strict=True)
    )
    return csv_bytes(header, rows)


def _known(value: int | None) -> int | str:
    return "" if value is None else value


def _stay(stay: Stay) -> str:
    return f"{stay.load_at}..{stay.gone_at}"


def both(first: TrainingView, second: TrainingView) -> list[Picture]:
    """Two plans in one picture, the second as a line."""
    return [over_time(first, second)]


def frontier_extras(problem: TrainingProblem, plans: Sequence[TrainingPlan]) -> Extras:
    """The step with everything on the device, and what each budget costs."""
    resident_us = plain_us(problem)
    return Extras(
        objective="step",
        baseline=("everything on the device", resident_us),
        unplanned=("everything on the device", peak_bytes(problem), resident_us),
        header=("over plain", "stored", "loaded", "on the host", "needs"),
        rows=tuple(_row(plan) for plan in plans),
    )


def _row(plan: TrainingPlan) -> tuple[str, ...]:
    if plan.objective is None:
        least = plan.infeasibility.minimum_budget_bytes if plan.infeasibility else None
        return ("", "", "", "", "" if least is None else show_bytes(least))
    over = show_share(plan.objective / plan.plain_us - 1) if plan.plain_us else ""
    sizes = [
        show_bytes(plan.check[f"{w}_bytes"]) if f"{w}_bytes" in plan.check else "" for w in ("stored", "loaded", "host")
    ]
    return (over, *sizes, "")
