"""A memory plan as one HTML file: memory over time under the budget line, and what became of every result."""

from __future__ import annotations

from html import escape
from itertools import groupby

from loadmaster.api.report.memory.view import FATES, MEANING, Tensor, View
from loadmaster.api.report.page import Chart, facts, html_table, keys, page
from loadmaster.api.units import byte_scale, show_bytes, show_cost, show_share

_PHASES = ("forward", "recompute", "backward")
_LARGEST = 15


def plan_page(view: View) -> str:
    """The report of a feasible plan."""
    plan = view.plan
    lead = f"{view.problem.title or view.problem.name}, under {show_bytes(plan.budget_bytes)}"
    sections = [
        _facts(view),
        "<h2>Memory over the step</h2>",
        _figure(_timeline(view), "Bytes resident while each operator runs, as the checker replays the plan."),
        keys([(phase, phase) for phase in _PHASES]),
        "<h2>What becomes of every result</h2>",
        _fates(view),
        _figure(_residency(view), "One row per forward result, from first to last: when it is on the device."),
        "<h2>The largest results</h2>",
        _largest(view),
    ]
    return page(plan.name, lead, sections)


def _facts(view: View) -> str:
    plan, check = view.plan, view.check
    assert plan.objective is not None
    over = plan.objective / plan.unconstrained - 1 if plan.unconstrained else 0.0
    bound = "no bound was computed" if plan.bound is None else f"no plan is below {show_cost(plan.bound, plan.unit)}"
    peak_share = f"{show_share(check.peak_bytes / plan.budget_bytes)} of the budget, at {check.peak_at}"
    again = f"{check.recomputed} operators run again"
    return facts(
        [
            ("step", show_cost(plan.objective, plan.unit), f"{show_share(over)} over unlimited memory"),
            ("proved gap", show_share(plan.gap), bound),
            ("peak", show_bytes(check.peak_bytes), peak_share),
            ("recomputing", show_cost(check.recompute_us, "us"), again),
            ("waiting for copies", show_cost(check.stall_us, "us"), f"{show_bytes(check.offloaded_bytes)} offloaded"),
            ("checker", "passed", f"{plan.method}, stopped by {plan.stopped_by}"),
        ]
    )


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def _timeline(view: View) -> str:
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
        words = f"{event.what} {event.operator}: {event.op}, {show_bytes(event.resident_bytes)}"
        words += f", {show_cost(event.duration_us, 'us')}"
        box = f'x="{left}" y="{y}" width="{max(right - left, 0.5):.2f}" height="{floor - y:.2f}"'
        chart.add(f'<rect {box} fill="transparent"><title>{escape(words)}</title></rect>')
    chart.rule(budget, "budget", f"budget {show_bytes(view.plan.budget_bytes)}")
    return chart.svg(f"Resident bytes over one training step, below a budget of {show_bytes(view.plan.budget_bytes)}")


def _fates(view: View) -> str:
    """One bar of all bytes, split by fate, and its legend."""
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
    svg = (
        f'<svg viewBox="0 0 960 26" role="img" aria-label="{escape(words)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(bar)}</svg>'
    )
    rows = [(f, f"{f} {show_bytes(totals[f])} ({counts[f]}): {MEANING[f]}") for f in FATES if totals[f]]
    return f"<figure>{svg}</figure>{keys(rows)}"


def _residency(view: View) -> str:
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
    return chart.svg("When each forward result is on the device")


def _describe(tensor: Tensor) -> str:
    return f"{tensor.forward}: {tensor.node or tensor.op}, {show_bytes(tensor.size_bytes)}, {tensor.fate}"


def _largest(view: View) -> str:
    rows = [
        [
            str(t.forward),
            t.node or t.op,
            show_bytes(t.size_bytes),
            t.fate,
            str(t.times_computed),
            show_cost(t.recompute_us, "us") if t.recompute_us else "",
        ]
        for t in view.largest(_LARGEST)
    ]
    header = ["id", "made by", "size", "fate", "computed", "time to recompute"]
    return html_table(header, rows, numbers=(0, 2, 4, 5))
