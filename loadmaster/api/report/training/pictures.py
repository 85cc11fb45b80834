"""A training plan in pictures: bytes on the device by role, links and updates over time, and where each layer's
parameters are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from loadmaster.api.report.bands import bands
from loadmaster.api.report.chart import Chart, RowChart
from loadmaster.api.report.over_time import Line, measured_steps, rows_over_time, stacked
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.training.view import COPIES, Replayed, TrainingView, place
from loadmaster.api.report.words import measured_words
from loadmaster.models.units import byte_scale, show_bytes

_ROW_HEIGHT = 26
# The colours of points, in the order in which they are met.
_POINTS = ("backward", "shade", "ink", "budget", "plan", "recompute", "offloaded", "kept")
# The colours of places of weights, of states and of updates.
_WEIGHTS = {"device": "kept", "copy": "recompute", "streamed": "offloaded"}
_PLACED = {"device": "kept", "host": "offloaded", "none": "freed", "disk": "budget"}


def png(view: TrainingView) -> bytes:
    """All pictures as a PNG."""
    return png_bytes(f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}", pictures(view))


def pictures(view: TrainingView) -> list[Picture]:
    """Pictures of memory, of the links and updates where a step takes time, and of the layers."""
    return [over_time(view), *([links(view)] if view.check.step_us else []), layers(view)]


def over_time(view: TrainingView, other: TrainingView | None = None) -> Picture:
    """Bytes on the device by role while each phase runs; as a line another plan of the problem, or else what was
    measured."""
    check, budget = view.check, view.plan.budget_bytes
    lines, named = [], []
    words = f"Bytes on the device over one training step, below a budget of {show_bytes(budget)}"
    caption = "Bytes on the device while each phase runs or waits, by role, as the checker replays the plan."
    if other is not None:
        lines.append(Line(other.steps, "ink", dash="3 2"))
        named.append(("ink", f"line: the other plan, {show_bytes(other.check.peak_bytes)} at its peak"))
    elif view.measured is not None:
        lines.append(Line(measured_steps(view.measured), "ink"))
        named.append(("ink", f"solid line: measured, {show_bytes(view.measured.peak_bytes)} at its peak"))
        words += f"; {measured_words(view.measured, check.peak_bytes, check.step_us)}"
        caption += " Measured: bytes allocated during one profiled step, drawn as long as a step takes unprofiled."
    step_us = max([check.step_us, *(start + duration for line in lines for start, duration, _ in line.steps)])
    factor, unit = byte_scale(budget)
    most = max([budget, check.peak_bytes, *(size for line in lines for _, _, size in line.steps)])
    chart = Chart((0.0, step_us / 1e3), (0.0, most / factor * 1.1))
    chart.axes("milliseconds", unit)
    if view.roles:
        starts_us, order = zip(*view.held, strict=True)
        stacked(chart, starts_us, check.step_us, [replace(r, sizes=r.sizes[list(order)]) for r in view.roles], factor)
    _told(view, chart, factor)
    legend = [*((role.colour, role.words) for role in view.roles), *named]
    for line in lines:
        line.draw(chart, factor)
    for left, right, name in bands([event for event in view.events if event.what != "update"], chart.px):
        chart.add(f'<path d="M{left} 3V15M{right} 3V15" stroke="var(--quiet)"/>')
        chart.add(f'<text x="{(left + right) / 2:.2f}" y="13" text-anchor="middle">{escape(name)}</text>')
    chart.rule(budget / factor, "budget", f"budget {show_bytes(budget)}")
    return Picture(
        chart.drawing(words),
        heading="Memory over the step",
        caption=caption,
        legend=legend,
    )


def _told(view: TrainingView, chart: Chart, factor: float) -> None:
    """Say of every phase what it is and what is on the device, where the pointer is."""
    for (_, p), (start, duration, size) in zip(view.held, view.steps, strict=True):
        left, right, y = chart.px(start / 1e3), chart.px((start + duration) / 1e3), chart.py(size / factor)
        box = f'x="{left}" y="{y}" width="{max(right - left, 0.5):.2f}" height="{chart.py(0) - y:.2f}"'
        words = f"{p}: {view.phases.words(p)}, {show_bytes(size)}"
        chart.add(f'<rect {box} fill="transparent"><title>{escape(words)}</title></rect>')


def links(seen: Replayed, heading: str = "Links and updates", longest_us: float = 0.0) -> Picture:
    """A row for the device, for each direction of the link, for the updates on the host and for the disk;
    ``longest_us``: of the axis, where that is longer than the step."""
    rows, step_us = seen.rows(), seen.check.step_us
    carried = {copy.what for copy in seen.timeline.copies} | ({"state"} if seen.timeline.disk_moves else set())
    legend = [("forward", "forward pass"), ("backward", "backward pass"), ("recompute", "update, gradient")]
    legend += [(COPIES[what], what) for what in COPIES if what in carried and COPIES[what] != "recompute"]
    return Picture(
        rows_over_time(rows, max(step_us, longest_us)).drawing("When device, links and the host's updates are busy"),
        heading=heading,
        caption=f"Busy: {', '.join(row.share(step_us) for row in rows)} of the step.",
        legend=legend,
    )


def layers(view: TrainingView) -> Picture:
    """A column for each layer: how it runs, where its parameters and states are, and where they are updated."""
    problem, count = view.problem, len(view.problem.layers)
    labels = ("how it runs", "weights", "state", "update")
    chart = RowChart((0.0, float(count)), labels, _ROW_HEIGHT, 24 + 7 * max(map(len, labels)))
    chart.row_axes("layer")
    names = list(dict.fromkeys(point.name for one in problem.classes for point in one.points))
    colours = {name: _POINTS[n % len(_POINTS)] for n, name in enumerate(names)}
    of_layer: list[list[int]] = [[] for _ in range(count)]
    for g, group in enumerate(problem.groups):
        for n in group.layers:
            of_layer[n].append(g)
    for n, (layer, point) in enumerate(zip(problem.layers, view.points, strict=True)):
        _cell(chart, 0, (n, 0, 1), colours[point.name], f"{layer.name}: {point.name}")
        for i, g in enumerate(of_layer[n]):
            at, cell = view.schedule.groups[g], (n, i, len(of_layer[n]))
            words = f"{problem.groups[g].name}: {place(at)}"
            for row, colour in enumerate((_WEIGHTS[at.weights], _PLACED[at.state], _PLACED[at.update]), start=1):
                # Of what is not there nothing is drawn.
                if row != 2 or problem.groups[g].state_bytes:
                    _cell(chart, row, cell, colour, words)
    used = {point.name for point in view.points}
    legend = [(colours[name], f"{labels[0]}: {name}") for name in names if name in used]
    legend += [("kept", "on the device"), ("recompute", "a copy on the device"), ("offloaded", "on the host")]
    if any(at.state == "disk" for at in view.schedule.groups):
        legend.append((_PLACED["disk"], "in files"))
    return Picture(
        chart.drawing("How each layer runs, and where its parameters are stored and updated"),
        heading="Layer by layer",
        caption="From the first layer to the last. Weights on the host are streamed where no copy stays on the device.",
        legend=legend,
    )


def _cell(chart: RowChart, row: int, at: Sequence[int], colour: str, words: str) -> None:
    """Draw one of the parts that a layer's column is divided into; ``at``: layer, part, parts."""
    layer, part, parts = at
    chart.bar(row, layer + part / parts, layer + (part + 0.9) / parts, f'fill="var(--{colour})"', words)
