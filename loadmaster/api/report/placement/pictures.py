"""A placement plan in pictures: bytes on the device under the budget line, what is away, when the links are busy."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.api.report.chart import Chart
from loadmaster.api.report.over_time import Busy, Line, Role, Row, Stretch, bytes_over_time, rows_over_time, stacked
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.placement.links import link_rows
from loadmaster.api.report.placement.view import PlacementView
from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.models.units import byte_scale, show_bytes, show_cost

# Role -> the colour of its bytes where they are away, from the bottom up.
ROLES = {
    "state": "offloaded",
    "gradient": "recompute",
    "parameter": "plan",
    "activation": "backward",
    "input": "freed",
}


def png(view: PlacementView) -> bytes:
    """All pictures as a PNG."""
    return png_bytes(f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}", pictures(view))


def pictures(view: PlacementView) -> list[Picture]:
    """Pictures of residency and, where anything moves, of what is away and of the links."""
    return [over_time(view), *([away(view), links(view)] if view.moves.absences else [])]


def over_time(view: PlacementView, other: PlacementView | None = None) -> Picture:
    """Bytes on the device while each operator waits and runs; as a line another plan of the problem, or else the step
    if nothing ever left the device."""
    check, budget = view.check, view.plan.budget_bytes
    if other is None:
        beside, name = list(_unplanned(view.problem)), "the step if nothing ever left"
    else:
        beside, name = [(s.start_us, s.duration_us, s.size_bytes) for s in _stretches(other)], "the other plan"
    drawn = [Line(beside, "ink", dash="3 2")]
    chart = bytes_over_time(list(_stretches(view)), budget, check.peak_bytes, view.run.last_us, drawn)
    most = show_bytes(max(size for _, _, size in beside))
    line = ("ink", f"line: {name}, {most} at its peak")
    return Picture(
        chart.drawing(f"Bytes on the device over one training step, below a budget of {show_bytes(budget)}"),
        heading="Memory over the step",
        caption="Bytes on the device while each operator runs or waits, as the checker replays the plan.",
        legend=[("forward", "runs"), ("recompute", "waits for copies"), line],
    )


def _unplanned(problem: PlacementProblem) -> Iterator[tuple[float, float, int]]:
    """Start, duration and bytes of every operator on a device that has room for everything."""
    start_us = 0.0
    for operator, size in zip(problem.operators, Accesses(problem).live_bytes.tolist(), strict=True):
        yield start_us, operator.time_us, size
        start_us += operator.time_us


def _stretches(view: PlacementView) -> Iterator[Stretch]:
    run = view.run
    for i, operator in enumerate(view.problem.operators):
        size, start, wait = int(run.resident_bytes[i]), float(run.starts_us[i]), float(run.stall_us[i])
        words = f"{i}: {operator.words}, {show_bytes(size)}"
        if wait > 0:
            waits = f"{words}, waits {show_cost(wait, 'us')}"
            yield Stretch(start - wait, wait, size, "recompute", waits, operator.module)
        runs = f"{words}, {show_cost(operator.time_us, 'us')}"
        yield Stretch(start, operator.time_us, size, "forward", runs, operator.module)


def away(view: PlacementView) -> Picture:
    """Bytes in the tiers that are not on the device, by role, above each other."""
    roles = [Role(role, ROLES[role], view.away_bytes[role]) for role in ROLES if role in view.away_bytes]
    most = int(sum((role.sizes for role in roles[1:]), roles[0].sizes).max())
    factor, unit = byte_scale(most)
    chart = Chart((0.0, view.run.last_us / 1e3), (0.0, most / factor * 1.1), height=240)
    chart.axes("milliseconds", unit)
    stacked(chart, (view.run.starts_us - view.run.stall_us).tolist(), view.run.last_us, roles, factor)
    return Picture(
        chart.drawing("Bytes that are not on the device and will be read, over one training step, by role"),
        heading="What is away",
        caption="Bytes that lie in a tier, will be read, and are not on the device.",
        legend=[(role.colour, role.words) for role in roles],
    )


def links(view: PlacementView) -> Picture:
    """A row for each direction of each link."""
    step_us, blocks = view.run.last_us, view.problem.blocks
    rows = [
        Row(row.label, [Busy(c.start_us, c.end_us, ROLES[blocks[c.copy.block].role], c.words) for c in row.copies])
        for row in link_rows(view.problem, view.run)
    ]
    chart, shares = rows_over_time(rows, step_us), [row.share(step_us) for row in rows]
    return Picture(
        chart.drawing("When each direction of the links is busy"),
        heading="The links",
        caption=f"One row for each direction, coloured by what it carries. Busy: {', '.join(shares)} of the step.",
    )
