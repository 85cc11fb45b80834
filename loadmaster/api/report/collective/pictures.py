"""A collective plan as a PNG picture: time against size where the table has several, and who sends when."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from loadmaster.api.report.collective.curve import decades
from loadmaster.api.report.collective.plan_page import caption, colour, legend_owners, size_ticks, telling
from loadmaster.api.report.collective.timeline import Row, owner_word, timeline
from loadmaster.api.report.collective.view import View
from loadmaster.api.report.collective.words import show_ns
from loadmaster.api.report.figure import BLUE, INK, PURPLE, STYLE, png_bytes
from loadmaster.api.units import show_bytes, show_share
from loadmaster.models.collective.plan import Algorithm

# The smallest and the largest algorithm say what the others would.
LARGEST_CHARTS = 2
_ROW_INCHES, _CURVE_INCHES, _MARGIN_INCHES, _LEGEND_INCHES = 0.17, 3.6, 1.2, 0.5


def plan_png(view: View) -> bytes:
    """A feasible plan, drawn."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    plan = view.plan
    shown = telling(list(zip(plan.algorithms, view.check.algorithms, strict=True)), LARGEST_CHARTS)
    charts = [(algorithm, timeline(view.problem, algorithm, check), check) for algorithm, check in shown]
    heights = [_CURVE_INCHES] if len(plan.algorithms) > 1 else []
    heights += [_MARGIN_INCHES + _ROW_INCHES * len(rows) for _, rows, _ in charts]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, sum(heights) + _LEGEND_INCHES), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        title = textwrap.fill(view.problem.title or view.problem.name, 92)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
        if len(plan.algorithms) > 1:
            _curve(axes.pop(0), plan.algorithms)
        rank_count = view.problem.topology.rank_count
        for chart, (algorithm, rows, check) in zip(axes, charts, strict=True):
            _gantt(chart, rows, check.time_ns, rank_count)
            what = f"{show_bytes(algorithm.size_bytes)}: {show_ns(algorithm.time_ns)}, gap {show_share(algorithm.gap)}"
            chart.set_title(what, loc="left", fontsize=10, color=INK)
            chart.set_xlabel(f"microseconds\n{textwrap.fill(caption(rows, check), 104)}", loc="left", fontsize=8)
        word = owner_word(view.problem, plan.algorithms[0])
        owners = legend_owners([row for _, rows, _ in charts for row in rows])
        figure.legend(
            handles=[Patch(color=colour(owner, rank_count), label=f"{word} {owner}") for owner in owners],
            loc="outside lower left",
            ncols=8,
            fontsize=8,
            edgecolor="none",
        )
    return png_bytes(figure)


def _curve(axes: Any, algorithms: Sequence[Algorithm]) -> None:
    sizes = [a.size_bytes for a in algorithms]
    for label, colour_of, values in (
        ("planned time", BLUE, [a.time_ns for a in algorithms]),
        ("proved bound", PURPLE, [a.bound_ns for a in algorithms]),
    ):
        axes.plot(sizes, [max(1, v) / 1e3 for v in values], color=colour_of, marker="o", markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    marks = size_ticks(sizes)
    axes.set_xticks(marks, [show_bytes(mark) for mark in marks])
    axes.minorticks_off()
    axes.set_xlabel("size")
    times = decades(min(max(1, a.bound_ns) for a in algorithms), max(max(1, a.time_ns) for a in algorithms))
    axes.set_yticks([t / 1e3 for t in times], [show_ns(round(t)) for t in times])
    axes.set_ylim(times[0] / 1e3, times[-1] / 1e3)
    axes.legend(loc="upper left", edgecolor="none", fontsize=9)


def _gantt(axes: Any, rows: Sequence[Row], time_ns: int, rank_count: int) -> None:
    """One row of the axes for each row, the first on top."""
    for n, row in enumerate(rows):
        flights = [bar for bar in row.bars if bar.arrives_ns is not None and bar.arrives_ns > bar.end_ns]
        axes.hlines(
            [n] * len(flights),
            [bar.end_ns / 1e3 for bar in flights],
            [(bar.arrives_ns or 0.0) / 1e3 for bar in flights],
            colors=[(colour(bar.owner, rank_count), 0.5) for bar in flights],
            linewidth=0.8,
            zorder=0.9,
        )
        axes.broken_barh(
            [(bar.start_ns / 1e3, (bar.end_ns - bar.start_ns) / 1e3) for bar in row.bars],
            (n - 0.42, 0.84),
            facecolors=[(colour(bar.owner, rank_count), bar.opacity) for bar in row.bars],
            linewidth=0,
        )
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=7)
    axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    axes.set_xlim(0, max(1, time_ns) / 1e3)
    axes.grid(False, axis="y")
