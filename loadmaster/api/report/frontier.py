"""A frontier of any kind, as one HTML file or a PNG: objective against limit, and what is proved of each point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from loadmaster.api.report.chart import Chart
from loadmaster.api.report.extras import Extras, feasible, published, scale_of
from loadmaster.api.report.frontier_curves import beside_picture
from loadmaster.api.report.measured import measured_rows
from loadmaster.api.report.page import html_table, page, shown
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.words import PRICES, price_words
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Limit
from loadmaster.models.units import limit_scale, show_cost, show_limit, show_share


def frontier_rows(limit: Limit, plans: Sequence[Plan], extras: Extras) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of a sweep: a row for every plan, infeasible ones too."""
    rows, others = [], dict(published(limit, plans, extras))
    for n, plan in enumerate(plans):
        row = [show_limit(limit.of_plan(plan), limit.unit), plan.standing]
        row.append("" if plan.objective is None else show_cost(plan.objective, plan.unit))
        row.append("" if plan.bound is None else show_cost(plan.bound, plan.unit))
        row.append("" if plan.objective is None else show_share(plan.gap))
        row += extras.rows[n] if extras.rows else ()
        if others:
            known = others.get(limit.of_plan(plan))
            row.append("" if known is None else show_cost(known, plan.unit))
        row += [_restricted(limit, plan, narrower) for narrower in extras.restrictions.values()]
        rows.append(row)
    header = [limit.name, "status", extras.objective, "bound", "gap", *extras.header]
    return [*header, *(["published"] if others else []), *extras.restrictions], rows


def _restricted(limit: Limit, plan: Plan, narrower: Sequence[Plan]) -> str:
    """The objective under the same limit and its gap, or why there is none."""
    found = next((one for one in narrower if limit.of_plan(one) == limit.of_plan(plan)), None)
    if found is None:
        return "unknown"
    if found.objective is None:
        return "no plan"
    return f"{show_cost(found.objective, found.unit)}, gap {show_share(found.gap)}"


def price_rows(limit: Limit, extras: Extras, unit: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of prices: a row for every limit and resource."""
    rows = []
    for value, prices in extras.prices.items():
        rows += [[show_limit(value, limit.unit), *price_words(price, unit)] for price in prices]
    return [limit.name, *PRICES], rows


def curve_picture(limit: Limit, curve: Sequence[Plan], extras: Extras) -> Picture:
    """The picture of a sweep with at least one feasible plan: the curve alone, or compared with others."""
    draw = beside_picture if extras.restrictions or extras.measured else frontier_picture
    return draw(limit, curve, extras)


def frontier_page(title: str, limit: Limit, plans: Sequence[Plan], extras: Extras) -> str:
    """The report of a sweep; plans by ascending limit."""
    curve = feasible(plans)
    sections = []
    if curve:
        sections.append(shown(curve_picture(limit, curve, extras)))
    header, rows = frontier_rows(limit, plans, extras)
    header, rows = (
        [*header, "seconds"],
        [[*row, f"{sum(plan.seconds.values()):.1f}"] for row, plan in zip(rows, plans, strict=True)],
    )
    sections += ["<h2>Points</h2>", html_table(header, rows, numbers=(0, *range(2, len(header))))]
    if extras.prices and plans:
        sections += ["<h2>Prices</h2>", html_table(*price_rows(limit, extras, plans[0].unit), numbers=(0, 2, 3))]
    if extras.measured and plans:
        sections += [
            "<h2>Measured</h2>",
            html_table(*measured_rows(limit, extras.measured, plans[0].unit), numbers=(1, 2)),
        ]
    lead = f"The best {extras.objective} under {len(plans)} {limit.plural}, and how far from optimal it can be"
    return page(title, lead, sections)


def frontier_png(title: str, limit: Limit, plans: Sequence[Plan], extras: Extras) -> bytes:
    """The picture of a sweep with at least one feasible plan; plans by ascending limit."""
    return png_bytes(title, [curve_picture(limit, feasible(plans), extras)])


@dataclass(frozen=True)
class Point:
    """One limit of a frontier: what is known of it, and the address of more."""

    value: int
    objective: float | None
    bound: float | None
    gap: float | None
    address: str = ""


def frontier_picture(limit: Limit, curve: Sequence[Plan], extras: Extras) -> Picture:
    """Objective against limit, with the band down to the bound, the gap of every point and published results."""
    points = [Point(limit.of_plan(plan), plan.objective, plan.bound, plan.gap) for plan in curve]
    return points_picture(points, (limit.name, limit.unit), curve[0].unit, extras, published(limit, curve, extras))


def points_picture(
    points: Sequence[Point],
    limit: tuple[str, str],
    cost_unit: str,
    extras: Extras,
    marked: Sequence[tuple[int, float]] = (),
) -> Picture:
    """Objective against limit from points alone, those with an objective; at least one has. ``limit``: its name and its
    unit; ``marked``: (limit, objective) of others."""
    curve = [(p.value, p.objective, p) for p in points if p.objective is not None]
    scale, (name, limit_unit) = scale_of(cost_unit), limit
    costs = [v for _, objective, p in curve for v in (objective, p.bound) if v is not None]
    costs += [cost for _, cost in marked] + ([extras.baseline[1]] if extras.baseline else [])
    low, high = min(costs) / scale.factor, max(costs) / scale.factor
    size, unit = limit_scale(curve[-1][0], limit_unit)
    xs = [value / size for value, _, _ in curve]
    pad_x, pad_y = (xs[-1] - xs[0] or 1) * 0.06, (high - low or 1) * 0.14
    chart = Chart((xs[0] - pad_x, xs[-1] + pad_x), (low - pad_y, high + pad_y), height=440)
    chart.axes(f"{name}, {unit}", f"{extras.objective}, {scale.unit}")
    if extras.baseline is not None:
        words, with_enough = extras.baseline
        first, last = (abs(curve[end][1] - with_enough) for end in (0, -1))
        # The label stands where the curve is farther from the line.
        chart.rule(with_enough / scale.factor, "quiet", words, dash="2 4", label_on_left=first > last)
    at = [(chart.px(x), chart.py(objective / scale.factor)) for x, (_, objective, _) in zip(xs, curve, strict=True)]
    bounded = [
        (x, y, chart.py(p.bound / scale.factor))
        for (x, y), (_, _, p) in zip(at, curve, strict=True)
        if p.bound is not None
    ]
    if len(bounded) > 1:
        outline = "L".join(f"{x} {y}" for x, y, _ in bounded)
        back = "L".join(f"{x} {low_y}" for x, _, low_y in reversed(bounded))
        chart.add(f'<path d="M{outline}L{back}Z" fill="var(--band)"/>')
    line = "L".join(f"{x} {y}" for x, y in at)
    chart.add(f'<path d="M{line}" fill="none" stroke="var(--plan)" stroke-width="2"/>')
    for value, cost in marked:
        x, y = chart.px(value / size), chart.py(cost / scale.factor)
        chart.add(
            f'<path d="M{x - 6} {y}L{x} {y - 6}L{x + 6} {y}L{x} {y + 6}Z" fill="none" '
            f'stroke="var(--reference)" stroke-width="1.8"/>'
        )
    for (x, y), (value, objective, p) in zip(at, curve, strict=True):
        words = f"{show_limit(value, limit_unit)}: {show_cost(objective, cost_unit)}, gap {show_share(p.gap)}"
        chart.add(_linked(p, words, f'<circle cx="{x}" cy="{y}" r="4.5" fill="var(--plan)">', x, y))
        if p.gap is not None:
            chart.add(f'<text x="{x + 9}" y="{y - 9}" class="strong">{100 * p.gap:.1f} %</text>')
    legend = [("plan", "best plan found"), ("band", "between the plan and the proved bound")]
    if marked:
        legend.append(("reference", f"published: {extras.published_by}"))
    said = f"{extras.objective.capitalize()} against {name}; the label of each point is its proved gap"
    return Picture(chart.drawing(said), legend=legend)


def _linked(point: Point, words: str, circle: str, x: float, y: float) -> str:
    """A point of the curve, as large for a finger as it needs where it leads somewhere."""
    drawn = f"{circle}<title>{escape(words)}</title></circle>"
    if not point.address:
        return drawn
    reach = f'<circle cx="{x}" cy="{y}" r="16" fill="transparent"/>'
    return f'<a class="point" href="{escape(point.address)}" aria-label="{escape(words)}">{reach}{drawn}</a>'
