"""PNG pictures through matplotlib (extra ``solver``): a frontier, and the timeline of a memory plan."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.api.report.figure import BLUE, GREY, INK, PURPLE, STYLE, save
from loadmaster.api.report.memory.frontier_page import feasible, scale_of
from loadmaster.api.report.memory.view import View
from loadmaster.api.units import byte_scale, show_bytes
from loadmaster.errors import InputError
from loadmaster.models.memory.plan import MemoryPlan

_ORANGE, _GREEN, _RED = "#e08e2b", "#3a9d7c", "#c2410c"
_PHASES = {"forward": "#4c8dd6", "recompute": _ORANGE, "backward": _GREEN}


def frontier_png(
    path: str | Path, title: str, plans: Sequence[MemoryPlan], reference: Mapping[int, Mapping[str, float]]
) -> None:
    """Draw step time against budget, with the bound band, the gap of every point and published results if any.

    Raises:
        InputError: there is nothing to draw (no feasible plan), or the path cannot be written.
    """
    curve = feasible(plans)
    if not curve:
        raise InputError("budgets", len(plans), "no budget has a plan", "Sweep larger budgets.")
    scale = scale_of(curve[0].unit)
    figure, axes = _figure(title)
    size, unit = byte_scale(curve[-1].budget_bytes)
    x = [p.budget_bytes / size for p in curve]
    y = [(p.objective or 0.0) / scale.factor for p in curve]
    bounded = [p for p in curve if p.bound is not None]
    axes.axhline(curve[0].unconstrained / scale.factor, color=GREY, linestyle=(0, (1, 3)), linewidth=1.2)
    axes.annotate(
        "memory to spare",
        (x[-1], curve[0].unconstrained / scale.factor),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=GREY,
        fontsize=9,
    )
    axes.fill_between(
        [p.budget_bytes / size for p in bounded],
        [(p.bound or 0.0) / scale.factor for p in bounded],
        [(p.objective or 0.0) / scale.factor for p in bounded],
        color=BLUE,
        alpha=0.16,
        linewidth=0,
        label="between the plan and the proved bound",
    )
    axes.plot(x, y, color=BLUE, marker="o", markersize=6, linewidth=2, label="best plan found")
    published = sorted(
        (b, r["best_objective_us"]) for b, r in reference.items() if b in {p.budget_bytes for p in curve}
    )
    if published:
        axes.plot(
            [b / size for b, _ in published],
            [cost / scale.factor for _, cost in published],
            linestyle="",
            marker="D",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=PURPLE,
            markeredgewidth=1.6,
            label="published (commercial solver, 24 h, 12 threads)",
        )
    for p, px, py in zip(curve, x, y, strict=True):
        if p.gap is not None:
            axes.annotate(f"{100 * p.gap:.1f} %", (px, py), xytext=(8, 8), textcoords="offset points", fontsize=9)
    axes.margins(x=0.07, y=0.14)
    axes.set_xlabel(f"budget, {unit}")
    axes.set_ylabel(f"step, {scale.unit}")
    axes.legend(loc="upper right", edgecolor="none", labelcolor=GREY, fontsize=9)
    save(figure, path)


def plan_png(path: str | Path, view: View) -> None:
    """Draw the memory timeline of one plan under its budget.

    Raises:
        InputError: the path cannot be written.
    """
    title = f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    figure, axes = _figure(title)
    size, unit = byte_scale(view.plan.budget_bytes)
    for phase, colour in _PHASES.items():
        chosen = [e for e in view.events if e.what == phase]
        if chosen:
            axes.bar(
                [e.start_us / 1e3 for e in chosen],
                [e.resident_bytes / size for e in chosen],
                width=[e.duration_us / 1e3 for e in chosen],
                align="edge",
                color=colour,
                linewidth=0,
                label=phase,
            )
    budget = view.plan.budget_bytes / size
    axes.axhline(budget, color=_RED, linestyle=(0, (5, 3)), linewidth=1.5, label="budget")
    axes.set_xlim(0, view.check.time_us / 1e3)
    axes.set_ylim(0, max(budget, view.check.peak_bytes / size) * 1.18)
    axes.set_xlabel("milliseconds")
    axes.set_ylabel(f"resident, {unit}")
    axes.legend(loc="upper right", ncols=4, edgecolor="none", labelcolor=GREY, fontsize=9)
    save(figure, path)


def _figure(title: str) -> tuple[Any, Any]:
    """A figure that no window system knows of."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.8), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_title(textwrap.fill(title, 92), loc="left", fontsize=11, fontweight="bold", color=INK)
    return figure, axes
