"""A placement plan in pictures: bytes on the device under the budget line, what is away, when the links are busy."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from loadmaster.api.report.chart import Chart, RowChart
from loadmaster.api.report.over_time import Line, Stretch, bytes_over_time
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
_ROW_HEIGHT = 26


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
    roles = [role for role in ROLES if role in view.away_bytes]
    total = sum((view.away_bytes[role] for role in roles), np.zeros(len(view.problem.operators), dtype=np.int64))
    factor, unit = byte_scale(int(total.max()))
    starts = view.run.starts_us - view.run.stall_us
    chart = Chart((0.0, view.run.last_us / 1e3), (0.0, int(total.max()) / factor * 1.1), height=240)
    chart.axes("milliseconds", unit)
    floor, right = chart.py(0), chart.px(view.run.last_us / 1e3)
    # The highest first: what is lower is drawn over it.
    for role in reversed(roles):
        outline = f"M{chart.px(0)} {floor}"
        for start, size in zip(starts, total, strict=True):
            outline += f"H{chart.px(float(start) / 1e3)}V{chart.py(int(size) / factor)}"
        most = f"{role}: at most {show_bytes(int(view.away_bytes[role].max()))}"
        title = f"<title>{escape(most)}</title>"
        chart.add(f'<path d="{outline}H{right}V{floor}Z" fill="var(--{ROLES[role]})">{title}</path>')
        total = total - view.away_bytes[role]
    return Picture(
        chart.drawing("Bytes that are not on the device and will be read, over one training step, by role"),
        heading="What is away",
        caption="Bytes that lie in a tier, will be read, and are not on the device.",
        legend=[(ROLES[role], f"{role} (at most {show_bytes(int(view.away_bytes[role].max()))})") for role in roles],
    )


def links(view: PlacementView) -> Picture:
    """A row for each direction of each link."""
    rows, step_us = link_rows(view.problem, view.run), view.run.last_us
    longest = max(len(row.label) for row in rows)
    chart = RowChart((0.0, step_us / 1e3), [row.label for row in rows], _ROW_HEIGHT, 24 + 7 * longest)
    chart.row_axes("milliseconds")
    shares = []
    for n, row in enumerate(rows):
        for busy in row.copies:
            words = f"{row.label}: {busy.words}, {show_cost(busy.end_us - busy.start_us, 'us')}"
            colour = ROLES[view.problem.blocks[busy.copy.block].role]
            chart.bar(n, busy.start_us / 1e3, busy.end_us / 1e3, f'fill="var(--{colour})"', words)
        share = sum(busy.end_us - busy.start_us for busy in row.copies) / step_us
        shares.append(f"{row.label} {share:.0%}")
    return Picture(
        chart.drawing("When each direction of the links is busy"),
        heading="The links",
        caption=f"One row for each direction, coloured by what it carries. Busy: {', '.join(shares)} of the step.",
    )
