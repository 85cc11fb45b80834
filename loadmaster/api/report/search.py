"""The course of a search: the best plan and the proved bound over time, and what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmaster.api.report.chart import Chart
from loadmaster.api.report.extras import scale_of
from loadmaster.api.report.picture import Picture
from loadmaster.models.units import byte_scale

_LEAST_S = 1.0
At = tuple[float, float]


@dataclass(frozen=True)
class SearchPoint:
    """The best plan and bound after so many seconds; None before there is one."""

    seconds: float
    objective: float | None
    bound: float | None


def search_picture(points: Sequence[SearchPoint], unit: str) -> Picture | None:
    """Steps of objective and bound, by points in order of time, the last of which says where the curves end; None
    before the first of either. A report that leaves one out leaves it as it was."""
    plans = _steps([(p.seconds, p.objective) for p in points])
    bounds = _steps([(p.seconds, p.bound) for p in points])
    values = [value for _, value in (*plans, *bounds)]
    if not values:
        return None
    factor, unit = _scale(max(values), unit)
    low, high = min(values) / factor, max(values) / factor
    pad = (high - low or abs(high) or 1.0) * 0.12
    chart = Chart((0.0, max(_LEAST_S, points[-1].seconds)), (low - pad, high + pad), height=300, left=84)
    chart.axes("seconds", unit)

    def line(steps: Sequence[At]) -> str:
        return "L".join(f"{chart.px(seconds)} {chart.py(value / factor)}" for seconds, value in steps)

    if plans and bounds:
        both_s = max(plans[0][0], bounds[0][0])
        above, below = _since(plans, both_s), _since(bounds, both_s)
        chart.add(f'<path d="M{line(above)}L{line(below[::-1])}Z" fill="var(--band)"/>')
    legend: list[tuple[str, str]] = []
    for steps, colour, words in ((bounds, "reference", "proved bound"), (plans, "plan", "best plan found")):
        if steps:
            chart.add(f'<path d="M{line(steps)}" fill="none" stroke="var(--{colour})" stroke-width="2"/>')
            legend.insert(0, (colour, words))
    words = f"Best plan and proved bound over {points[-1].seconds:.0f} seconds, in {unit}"
    return Picture(chart.drawing(words), heading="The search", legend=legend)


def _steps(points: Sequence[tuple[float, float | None]]) -> list[At]:
    """The corners of a line that stays until the next value is there, to the time of the last point."""
    known = [(seconds, value) for seconds, value in points if value is not None]
    if not known:
        return []
    corners = known[:1]
    for (_, before), (seconds, value) in pairwise(known):
        if value != before:
            corners += [(seconds, before), (seconds, value)]
    return [*corners, (points[-1][0], known[-1][1])]


def _since(corners: Sequence[At], start_s: float) -> list[At]:
    """The corners of a line of :func:`_steps` from a time on at which the line is there."""
    begun = [value for seconds, value in corners if seconds <= start_s]
    return [(start_s, begun[-1]), *(corner for corner in corners if corner[0] > start_s)]


def _scale(largest: float, unit: str) -> tuple[float, str]:
    if unit == "bytes":
        return byte_scale(largest)
    scale = scale_of(unit)
    return scale.factor, scale.unit
