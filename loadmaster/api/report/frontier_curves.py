"""A frontier compared with its restrictions, the step with nothing planned, and measured points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from html import escape

from loadmaster.api.report.chart import Chart, decades, tick_label, ticks
from loadmaster.api.report.colours import paint
from loadmaster.api.report.extras import Extras, feasible, published, scale_of
from loadmaster.api.report.measured import Measured
from loadmaster.api.report.picture import Picture
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Limit
from loadmaster.models.units import limit_scale, show_cost, show_limit, show_share

_RESTRICTED = ("recomputed", "offloaded")
_MEASURED = ("budget", "backward", "freed", "quiet")
# Objectives that are further apart than this, as a ratio, are drawn on a logarithmic axis.
_FAR_APART = 2.5
# Up to this ratio round numbers at equal distances still label such an axis.
_FEW_TICKS = 8.0

At = tuple[float, float]


def beside_picture(limit: Limit, curve: Sequence[Plan], extras: Extras) -> Picture:
    """Objective against limit: a curve for the problem and for each restriction, a mark for every other point."""
    unit = curve[0].unit
    whole = "any mixture" if extras.restrictions else "best plan found"
    curves = {whole: curve, **{name: feasible(plans) for name, plans in extras.restrictions.items()}}
    unplanned = [] if extras.unplanned is None else [Measured(*extras.unplanned)]
    measured = [*extras.measured]
    measured += [Measured(f"published: {extras.published_by}", *found) for found in published(limit, curve, extras)]
    every = [plan for plans in curves.values() for plan in plans]
    points = [
        (limit.of_plan(plan), cost) for plan in every for cost in (plan.objective, plan.bound) if cost is not None
    ]
    points += [(mark.value, mark.objective) for mark in (*measured, *unplanned)]
    chart, at = _axes(limit, extras, unit, points)
    colours = dict(zip(curves, itertools.chain(["plan"], itertools.cycle(_RESTRICTED)), strict=False))
    bounded = [_draw_band(chart, limit, plans, colours[name], at) for name, plans in curves.items()]
    for name, plans in curves.items():
        # Where a restriction is as good as the whole, both are seen.
        _draw_curve(chart, limit, name, plans, colours[name], at, width=6.0 if name == whole else 2.0)
    others = itertools.cycle(_MEASURED)
    paints = {name: colours.get(name) or next(others) for name in dict.fromkeys(mark.method for mark in measured)}
    for mark in measured:
        x, y = at(mark.value, mark.objective)
        box = f'x="{x - 4.5:.2f}" y="{y - 4.5:.2f}" width="9" height="9" fill="none"'
        words = f"{mark.method}, {_words(mark, limit, unit)}"
        stroke = f'stroke="{paint(paints[mark.method])}" stroke-width="2"'
        chart.add(f"<rect {box} {stroke}><title>{escape(words)}</title></rect>")
    for mark in unplanned:
        x, y = at(mark.value, mark.objective)
        words = f"{mark.method}: {_words(mark, limit, unit)}"
        path = f"M{x - 7} {y}L{x} {y - 7}L{x + 7} {y}L{x} {y + 7}Z"
        chart.add(f'<path d="{path}" fill="var(--ink)"><title>{escape(words)}</title></path>')
    legend = [(colours[name], name if plans else f"{name}: no plan") for name, plans in curves.items()]
    legend += [("band", "down to the proved bound")] if any(bounded) else []
    legend += [("ink", f"{mark.method} (diamond)") for mark in unplanned]
    legend += [(colour, f"{name} (square)") for name, colour in paints.items()]
    return Picture(
        chart.drawing(f"{extras.objective.capitalize()} against {limit.name}: {', '.join([*curves, *paints])}"),
        legend=legend,
    )


def _axes(
    limit: Limit, extras: Extras, unit: str, points: Sequence[tuple[int, float]]
) -> tuple[Chart, Callable[[float, float], At]]:
    """A chart that holds the points, and the function that places (limit, objective) in it. The kind's baseline is a
    line in it, unless there is a step with nothing planned to compare the points with."""
    scale = scale_of(unit)
    size, size_unit = limit_scale(max(value for value, _ in points), limit.unit)
    spare = extras.baseline if extras.unplanned is None else None
    xs, ys = [value / size for value, _ in points], [objective / scale.factor for _, objective in points]
    ys += [] if spare is None else [spare[1] / scale.factor]
    apart = min(ys) > 0 and max(ys) > _FAR_APART * min(ys)
    placed: Callable[[float], float] = math.log10 if apart else float
    low, high = placed(min(ys)), placed(max(ys))
    pad_x, pad_y = (max(xs) - min(xs) or 1) * 0.06, (high - low or 1) * 0.1
    chart = Chart((min(xs) - pad_x, max(xs) + pad_x), (low - pad_y, high + pad_y), height=440)
    taken = f"{limit.name} or measured peak" if extras.measured and limit.unit == "bytes" else limit.name
    chart.axes(f"{taken}, {size_unit}", f"{extras.objective}, {scale.unit}", _labels(min(ys), max(ys)) if apart else ())
    if spare is not None:
        chart.rule(placed(ys[-1]), "quiet", spare[0], dash="2 4")
    return chart, lambda value, objective: (chart.px(value / size), chart.py(placed(objective / scale.factor)))


def _labels(low: float, high: float) -> list[tuple[float, str]]:
    """Labels of a logarithmic axis from ``low`` to ``high``, at the logarithms of round numbers."""
    if high <= _FEW_TICKS * low:
        values = ticks(low, high, 8)
        return [(math.log10(value), tick_label(value, values[1] - values[0])) for value in values]
    values = [factor * power for power in decades(low, high) for factor in (1, 2, 5)]
    return [(math.log10(value), f"{value:g}") for value in values if low <= value <= high]


def _words(mark: Measured, limit: Limit, unit: str) -> str:
    return f"{show_cost(mark.objective, unit)} at {show_limit(mark.value, limit.unit)}"


def _draw_band(
    chart: Chart, limit: Limit, curve: Sequence[Plan], colour: str, at: Callable[[float, float], At]
) -> bool:
    """Fill the band from the curve down to the proved bound, if two points have one; return whether they do."""
    bounded = [(limit.of_plan(plan), plan.objective or 0.0, plan.bound) for plan in curve if plan.bound is not None]
    outline = [at(value, objective) for value, objective, _ in bounded]
    outline += [at(value, bound) for value, _, bound in reversed(bounded)]
    if len(bounded) > 1:
        chart.add(f'<path d="{_path(outline)}Z" fill="{paint(colour)}" fill-opacity="0.15"/>')
    return len(bounded) > 1


def _draw_curve(
    chart: Chart,
    limit: Limit,
    name: str,
    plans: Sequence[Plan],
    colour: str,
    at: Callable[[float, float], At],
    *,
    width: float,
) -> None:
    points = [at(limit.of_plan(plan), plan.objective or 0.0) for plan in plans]
    if points:
        chart.add(f'<path d="{_path(points)}" fill="none" stroke="{paint(colour)}" stroke-width="{width}"/>')
    for (x, y), plan in zip(points, plans, strict=True):
        shown = f"{show_cost(plan.objective or 0.0, plan.unit)} at {show_limit(limit.of_plan(plan), limit.unit)}"
        title = f"<title>{escape(f'{name}: {shown}, gap {show_share(plan.gap)}')}</title>"
        chart.add(f'<circle cx="{x}" cy="{y}" r="{width / 2 + 3}" fill="{paint(colour)}">{title}</circle>')


def _path(points: Sequence[At]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)
