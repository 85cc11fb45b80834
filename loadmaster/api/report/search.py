"""How a search went: the best plan and the proved bound over time, and what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmaster.api.report.chart import Chart
from loadmaster.api.report.extras import scale_of
from loadmaster.api.report.picture import Picture
from loadmaster.models.units import byte_scale

_LEAST_S = 1.0


@dataclass(frozen=True)
class SearchPoint:
    """The best plan and bound after so many seconds; None before there is one."""

    seconds: float
    objective: float | None
    bound: float | None


def search_picture(points: Sequence[SearchPoint], unit: str) -> Picture | None:
    """Steps of objective and bound; None before the first of either. A report that leaves one out leaves it as it was.

    Args:
        points: in order of time; the last says where the curves end.
    """
    known = _carried(points)
    values = [value for p in known for value in (p.objective, p.bound) if value is not None]
    if not values:
        return None
    factor, unit = _scale(max(values), unit)
    low, high = min(values) / factor, max(values) / factor
    pad = (high - low or abs(high) or 1.0) * 0.12
    chart = Chart((0.0, max(_LEAST_S, known[-1].seconds)), (low - pad, high + pad), height=300, left=84)
    chart.axes("seconds", unit)
    for before, after in pairwise(known):
        if before.objective is None or before.bound is None:
            continue
        left, right = chart.px(before.seconds), chart.px(after.seconds)
        top, bottom = chart.py(before.objective / factor), chart.py(before.bound / factor)
        chart.add(
            f'<rect x="{left}" y="{min(top, bottom)}" width="{right - left:.2f}" height="{abs(bottom - top):.2f}" '
            'fill="var(--band)"/>'
        )
    _steps(chart, [(p.seconds, p.bound) for p in known], factor, "reference")
    _steps(chart, [(p.seconds, p.objective) for p in known], factor, "plan")
    last = known[-1]
    legend = [("plan", "best plan found")] if last.objective is not None else []
    legend += [("reference", "proved bound")] if last.bound is not None else []
    words = f"Best plan and proved bound over {last.seconds:.0f} seconds, in {unit}"
    return Picture(chart.drawing(words), heading="The search", legend=legend)


def _carried(points: Sequence[SearchPoint]) -> list[SearchPoint]:
    found: list[SearchPoint] = []
    objective = bound = None
    for point in points:
        objective = point.objective if point.objective is not None else objective
        bound = point.bound if point.bound is not None else bound
        found.append(SearchPoint(point.seconds, objective, bound))
    return found


def _steps(chart: Chart, points: Sequence[tuple[float, float | None]], factor: float, colour: str) -> None:
    """A line that stays until the next value is there."""
    path = ""
    for seconds, value in points:
        if value is not None:
            x, y = chart.px(seconds), chart.py(value / factor)
            path += f"H{x}V{y}" if path else f"M{x} {y}"
    if path:
        chart.add(f'<path d="{path}" fill="none" stroke="var(--{colour})" stroke-width="2"/>')


def _scale(largest: float, unit: str) -> tuple[float, str]:
    if unit == "bytes":
        return byte_scale(largest)
    scale = scale_of(unit)
    return scale.factor, scale.unit
