"""A memory plan in pictures: memory over the step under the budget line, and what becomes of every result."""

from __future__ import annotations

from html import escape
from itertools import groupby

from loadmaster.api.report.chart import Chart
from loadmaster.api.report.memory.bands import LETTER_WIDTH, bands
from loadmaster.api.report.memory.view import FATES, MEANING, Tensor, View
from loadmaster.api.report.picture import Drawing, Picture, png_bytes
from loadmaster.models.units import byte_scale, show_bytes, show_cost, show_share

_ROW_HEIGHT = 22
_PHASES = ("forward", "recompute", "backward")


def plan_png(view: View) -> bytes:
    """Memory over the step, and what fills its peak, as a PNG."""
    return png_bytes(
        f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}", [over_time(view), *filling(view)]
    )


def over_time(view: View) -> Picture:
    """Steps of resident bytes, one filled shape per run of operators of the same phase."""
    factor, unit = byte_scale(view.plan.budget_bytes)
    budget = view.plan.budget_bytes / factor
    top = max(budget, view.check.peak_bytes / factor) * 1.1
    chart = Chart((0.0, view.check.time_us / 1e3), (0.0, top))
    chart.axes("milliseconds", unit)
    floor = chart.py(0)
    for phase, group in groupby(view.events, key=lambda e: e.what):
        events = list(group)
        outline = f"M{chart.px(events[0].start_us / 1e3)} {floor}"
        for event in events:
            outline += f"H{chart.px(event.start_us / 1e3)}V{chart.py(event.resident_bytes / factor)}"
        outline += f"H{chart.px((events[-1].start_us + events[-1].duration_us) / 1e3)}V{floor}Z"
        chart.add(f'<path d="{outline}" fill="var(--{phase})"/>')
    for event in view.events:
        left, right = chart.px(event.start_us / 1e3), chart.px((event.start_us + event.duration_us) / 1e3)
        y = chart.py(event.resident_bytes / factor)
        words = f"{event.what} {event.operator}: {event.words}, {show_bytes(event.resident_bytes)}"
        words += f", {show_cost(event.duration_us, 'us')}"
        box = f'x="{left}" y="{y}" width="{max(right - left, 0.5):.2f}" height="{floor - y:.2f}"'
        chart.add(f'<rect {box} fill="transparent"><title>{escape(words)}</title></rect>')
    for left, right, name in bands(view.events, chart.px):
        chart.add(f'<path d="M{left} 3V15M{right} 3V15" stroke="var(--quiet)"/>')
        chart.add(f'<text x="{(left + right) / 2:.2f}" y="13" text-anchor="middle">{escape(name)}</text>')
    chart.rule(budget, "budget", f"budget {show_bytes(view.plan.budget_bytes)}")
    words = f"Resident bytes over one training step, below a budget of {show_bytes(view.plan.budget_bytes)}"
    return Picture(
        chart.drawing(words),
        heading="Memory over the step",
        caption="Bytes resident while each operator runs, as the checker replays the plan.",
        legend=[(phase, phase) for phase in _PHASES],
    )


def filling(view: View) -> list[Picture]:
    """A bar for every module that holds much of the peak; nothing where no operator says which module it is of."""
    rows = view.filling()
    if not rows:
        return []
    label_width = 24 + LETTER_WIDTH * max(len(name) for name, _ in rows)
    scale = (960 - label_width - 150) / max(size for _, size in rows)
    bars = []
    for number, (name, size) in enumerate(rows):
        y, width = number * _ROW_HEIGHT, max(0.0, size * scale)
        share = f"{show_bytes(size)}, {show_share(size / view.check.peak_bytes)}"
        bars.append(f'<text x="{label_width - 8:.2f}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        bars.append(f'<rect x="{label_width:.2f}" y="{y + 3}" width="{width:.2f}" height="16" fill="var(--kept)"/>')
        bars.append(f'<text x="{label_width + width + 8:.2f}" y="{y + 15}">{share}</text>')
    words = ", ".join(f"{name} {show_bytes(size)}" for name, size in rows)
    return [
        Picture(
            Drawing(960, _ROW_HEIGHT * len(rows), words, "".join(bars)),
            heading="What fills the peak, by module",
            caption=f"Of the {show_bytes(view.check.peak_bytes)} resident at {view.check.peak_at}.",
        )
    ]


def fates(view: View) -> Picture:
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


def residency(view: View) -> Picture:
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
