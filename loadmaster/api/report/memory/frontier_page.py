"""A frontier as one HTML file: step time against budget, with what is proved about each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from loadmaster.api.report.page import Chart, html_table, keys, page
from loadmaster.api.units import byte_scale, show_bytes, show_cost, show_share
from loadmaster.models.memory.plan import MemoryPlan


@dataclass(frozen=True)
class Scale:
    """How objectives are drawn: divided by ``factor`` they are in ``unit``."""

    factor: float
    unit: str


def scale_of(unit: str) -> Scale:
    """Milliseconds for microseconds, millijoules for microjoules."""
    return {"us": Scale(1e3, "ms"), "uj": Scale(1e3, "mJ")}.get(unit, Scale(1.0, unit))


def feasible(plans: Sequence[MemoryPlan]) -> list[MemoryPlan]:
    """The points of the curve, by budget."""
    return sorted((p for p in plans if p.objective is not None), key=lambda p: p.budget_bytes)


def frontier_page(title: str, plans: Sequence[MemoryPlan], reference: Mapping[int, Mapping[str, float]]) -> str:
    """The report of a sweep. ``reference`` are published results by budget in bytes (may be empty)."""
    curve = feasible(plans)
    sections = []
    if curve:
        legend = [("plan", "best plan found"), ("band", "between the plan and the proved bound")]
        if any(p.budget_bytes in reference for p in curve):
            legend.append(("reference", "published: a commercial solver, 24 hours on 12 threads"))
        sections += [f"<figure>{_chart(curve, reference)}</figure>", keys(legend)]
    sections += ["<h2>Points</h2>", _points(sorted(plans, key=lambda p: p.budget_bytes), reference)]
    lead = f"The fastest training step under {len(plans)} memory budgets, and how far from optimal it can be"
    return page(title, lead, sections)


def _chart(curve: Sequence[MemoryPlan], reference: Mapping[int, Mapping[str, float]]) -> str:
    scale = scale_of(curve[0].unit)
    published = [(b, row["best_objective_us"]) for b, row in reference.items() if b in {p.budget_bytes for p in curve}]
    costs = [v for p in curve for v in (p.objective, p.bound, p.unconstrained) if v is not None]
    costs += [cost for _, cost in published]
    low, high = min(costs) / scale.factor, max(costs) / scale.factor
    size, unit = byte_scale(curve[-1].budget_bytes)
    xs = [p.budget_bytes / size for p in curve]
    pad_x, pad_y = (xs[-1] - xs[0] or 1) * 0.06, (high - low or 1) * 0.14
    chart = Chart((xs[0] - pad_x, xs[-1] + pad_x), (low - pad_y, high + pad_y), height=440)
    chart.axes(f"budget, {unit}", f"step, {scale.unit}")
    chart.rule(curve[0].unconstrained / scale.factor, "quiet", "memory to spare", dash="2 4")
    at = [(chart.px(p.budget_bytes / size), chart.py((p.objective or 0.0) / scale.factor), p) for p in curve]
    bounded = [(x, y, chart.py(p.bound / scale.factor)) for x, y, p in at if p.bound is not None]
    if len(bounded) > 1:
        outline = "L".join(f"{x} {y}" for x, y, _ in bounded)
        back = "L".join(f"{x} {low_y}" for x, _, low_y in reversed(bounded))
        chart.add(f'<path d="M{outline}L{back}Z" fill="var(--band)"/>')
    line = "L".join(f"{x} {y}" for x, y, _ in at)
    chart.add(f'<path d="M{line}" fill="none" stroke="var(--plan)" stroke-width="2"/>')
    for budget, cost in published:
        x, y = chart.px(budget / size), chart.py(cost / scale.factor)
        chart.add(
            f'<path d="M{x - 6} {y}L{x} {y - 6}L{x + 6} {y}L{x} {y + 6}Z" fill="none" '
            f'stroke="var(--reference)" stroke-width="1.8"/>'
        )
    for x, y, p in at:
        words = f"{show_bytes(p.budget_bytes)}: {show_cost(p.objective or 0.0, p.unit)}, gap {show_share(p.gap)}"
        chart.add(f'<circle cx="{x}" cy="{y}" r="4.5" fill="var(--plan)"><title>{escape(words)}</title></circle>')
        if p.gap is not None:
            chart.add(f'<text x="{x + 9}" y="{y - 9}" class="strong">{100 * p.gap:.1f} %</text>')
    return chart.svg("Step time against memory budget; the label of each point is its proved gap")


def _points(plans: Sequence[MemoryPlan], reference: Mapping[int, Mapping[str, float]]) -> str:
    header = ["budget", "status", "step", "over unlimited", "bound", "gap", "peak", "seconds"]
    known = any(p.budget_bytes in reference for p in plans)
    if known:
        header.append("published step")
    rows = []
    for p in plans:
        row = [show_bytes(p.budget_bytes), p.status]
        if p.objective is None:
            needs = p.infeasibility
            row += [f"needs {show_bytes(needs.minimum_budget_bytes)}" if needs else "", "", "", "", "", ""]
        else:
            over = show_share(p.objective / p.unconstrained - 1) if p.unconstrained else ""
            bound = show_cost(p.bound, p.unit) if p.bound is not None else "none"
            peak = show_bytes(p.check["peak_bytes"]) if "peak_bytes" in p.check else ""
            seconds = f"{sum(p.seconds.values()):.1f}"
            row += [show_cost(p.objective, p.unit), over, bound, show_share(p.gap), peak, seconds]
        if known:
            row.append(
                show_cost(reference[p.budget_bytes]["best_objective_us"], "us") if p.budget_bytes in reference else ""
            )
        rows.append(row)
    return html_table(header, rows, numbers=(0, 2, 3, 4, 5, 6, 7, 8))
