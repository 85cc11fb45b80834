"""A frontier of any kind as a PNG picture, through matplotlib (extra ``solver``)."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.api.report.figure import BLUE, GREY, PURPLE, new_figure, png_bytes
from loadmaster.api.report.frontier import Extras, feasible, published, scale_of
from loadmaster.api.units import limit_scale
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Limit


def frontier_png(title: str, limit: Limit, plans: Sequence[Plan], extras: Extras) -> bytes:
    """Objective against limit, with the bound band, the gap of every point and published results if any.

    At least one of the plans is feasible; they come by ascending limit.
    """
    curve = feasible(plans)
    scale = scale_of(curve[0].unit)
    figure, axes = new_figure(title)
    size, unit = limit_scale(limit.of_plan(curve[-1]), limit.unit)
    x = [limit.of_plan(p) / size for p in curve]
    y = [(p.objective or 0.0) / scale.factor for p in curve]
    if extras.baseline is not None:
        words, cost = extras.baseline
        axes.axhline(cost / scale.factor, color=GREY, linestyle=(0, (1, 3)), linewidth=1.2)
        at = (x[-1], cost / scale.factor)
        axes.annotate(words, at, xytext=(0, 4), textcoords="offset points", ha="right", color=GREY, fontsize=9)
    bounded = [p for p in curve if p.bound is not None]
    axes.fill_between(
        [limit.of_plan(p) / size for p in bounded],
        [(p.bound or 0.0) / scale.factor for p in bounded],
        [(p.objective or 0.0) / scale.factor for p in bounded],
        color=BLUE,
        alpha=0.16,
        linewidth=0,
        label="between the plan and the proved bound",
    )
    axes.plot(x, y, color=BLUE, marker="o", markersize=6, linewidth=2, label="best plan found")
    marked = published(limit, curve, extras)
    if marked:
        axes.plot(
            [value / size for value, _ in marked],
            [cost / scale.factor for _, cost in marked],
            linestyle="",
            marker="D",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=PURPLE,
            markeredgewidth=1.6,
            label=f"published: {extras.published_by}",
        )
    for p, px, py in zip(curve, x, y, strict=True):
        if p.gap is not None:
            axes.annotate(f"{100 * p.gap:.1f} %", (px, py), xytext=(8, 8), textcoords="offset points", fontsize=9)
    axes.margins(x=0.07, y=0.14)
    axes.set_xlabel(f"{limit.name}, {unit}")
    axes.set_ylabel(f"objective, {scale.unit}")
    axes.legend(loc="upper right", edgecolor="none", labelcolor=GREY, fontsize=9)
    return png_bytes(figure)
