"""A memory plan in pictures: memory over the step under the budget line, and what becomes of every result."""

from __future__ import annotations

from html import escape

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.chart import Chart
from loadmaster.api.report.memory.view import FATES, MEANING, MemoryView, Tensor
from loadmaster.api.report.over_time import Line, Stretch, bytes_over_time, measured_steps
from loadmaster.api.report.picture import Drawing, Picture, png_bytes
from loadmaster.api.report.words import measured_words
from loadmaster.models.units import show_bytes, show_cost, show_share

_PHASES = ("forward", "recompute", "backward")


def png(view: MemoryView) -> bytes:
    """Memory over the step, and what fills its peak, as a PNG."""
    return png_bytes(
        f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}", [over_time(view), *filling(view)]
    )


def over_time(view: MemoryView, other: MemoryView | None = None) -> Picture:
    """Steps of resident bytes, one filled shape per run of operators of the same phase; as lines another plan of the
    problem, or else the step without a plan and what was measured."""
    stretches = [
        Stretch(
            e.start_us,
            e.duration_us,
            e.resident_bytes,
            e.what,
            f"{e.what} {e.operator}: {e.words}, {show_bytes(e.resident_bytes)}, {show_cost(e.duration_us, 'us')}",
            e.module,
        )
        for e in view.events
    ]
    beside, name = (view.unplanned, "the step without a plan") if other is None else (other.check, "the other plan")
    lines = [Line([(e.start_us, e.duration_us, e.resident_bytes) for e in beside.events], "ink", dash="3 2")]
    legend = [(phase, phase) for phase in _PHASES if any(e.what == phase for e in view.events)]
    legend.append(("ink", f"dashed line: {name}, {show_bytes(beside.peak_bytes)} at its peak"))
    words = f"Resident bytes over one training step, below a budget of {show_bytes(view.plan.budget_bytes)}"
    caption = "Bytes resident while each operator runs, as the checker replays the plan."
    if view.measured is not None and other is None:
        lines.append(Line(measured_steps(view.measured), "ink"))
        legend.append(("ink", f"solid line: measured, {show_bytes(view.measured.peak_bytes)} at its peak"))
        words += f"; {measured_words(view.measured, view.check.peak_bytes, view.check.time_us)}"
        caption += " Measured: bytes allocated during one profiled step, drawn as long as a step takes unprofiled."
    chart = bytes_over_time(stretches, view.plan.budget_bytes, view.check.peak_bytes, view.check.time_us, lines)
    return Picture(chart.drawing(words), heading="Memory over the step", caption=caption, legend=legend)


def filling(view: MemoryView) -> list[Picture]:
    """A bar for every module that holds much of the peak; nothing where no operator says which module it is of."""
    rows = view.filling()
    if not rows:
        return []
    whole = view.check.peak_bytes
    bars = [(name, size, f"{show_bytes(size)}, {show_share(size / whole)}") for name, size in rows]
    words = ", ".join(f"{name} {show_bytes(size)}" for name, size in rows)
    return [
        Picture(
            labelled_bars(bars, words),
            heading="What fills the peak, by module",
            caption=f"Of the {show_bytes(view.check.peak_bytes)} resident at {view.check.peak_at}.",
        )
    ]


def fates(view: MemoryView) -> Picture:
    """One bar of all bytes, split by fate."""
    totals = view.bytes_by_fate()
    everything = sum(totals.values()) or 1
    counts = {fate: sum(t.fate == fate for t in view.tensors) for fate in FATES}
    bar, x = [], 0.0
    for fate in FATES:
        width = 960 * totals[fate] / everything
        if width:
            bar.append(f'<rect x="{x:.2f}" width="{width:.2f}" height="26" fill="var(--{fate})"/>')
        x += width
    words = ", ".join(f"{fate} {show_bytes(totals[fate])}" for fate in FATES)
    legend = [(f, f"{f} {show_bytes(totals[f])} ({counts[f]}): {MEANING[f]}") for f in FATES if totals[f]]
    return Picture(Drawing(960, 26, words, "".join(bar)), heading="What becomes of every result", legend=legend)


def residency(view: MemoryView) -> Picture:
    """A row per forward result, a bar where it is on the device."""
    row = max(2.0, min(8.0, 640 / max(1, len(view.tensors))))
    height = int(row * len(view.tensors)) + 60
    chart = Chart((0.0, view.check.time_us / 1e3), (len(view.tensors), 0.0), height=height)
    chart.axes("milliseconds", "forward result")
    thick = max(1.0, row - 1)
    for number, tensor in enumerate(view.tensors):
        bars = "".join(
            f"M{chart.px(start / 1e3)} {chart.py(number + 0.5)}H{max(chart.px(end / 1e3), chart.px(start / 1e3) + 0.6)}"
            for start, end in tensor.resident
        )
        title = f"<title>{escape(_describe(tensor))}</title>"
        stroke = f'stroke="var(--{tensor.fate})" stroke-width="{thick:.2f}"'
        chart.add(f'<path d="{bars or "M0 0"}" {stroke} fill="none">{title}</path>')
    drawing = chart.drawing("When each forward result is on the device")
    return Picture(drawing, caption="One row per forward result, from first to last: when it is on the device.")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.forward}: {tensor.made_by}, {show_bytes(tensor.size_bytes)}, {tensor.fate}"
