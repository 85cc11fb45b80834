"""A memory plan as a PNG picture, through matplotlib (extra ``solver``): resident bytes over the step."""

from __future__ import annotations

from loadmaster.api.report.figure import GREY, new_figure, png_bytes
from loadmaster.api.report.memory.view import View
from loadmaster.api.units import byte_scale, show_bytes

_ORANGE, _GREEN, _RED = "#e08e2b", "#3a9d7c", "#c2410c"
_PHASES = {"forward": "#4c8dd6", "recompute": _ORANGE, "backward": _GREEN}


def plan_png(view: View) -> bytes:
    """The memory timeline of one plan under its budget."""
    title = f"{view.problem.name}, under {show_bytes(view.plan.budget_bytes)}"
    figure, axes = new_figure(title)
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
    return png_bytes(figure)
