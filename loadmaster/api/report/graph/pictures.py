"""The picture of a graph plan: where the time of a step goes, kernel by kernel."""

from __future__ import annotations

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.graph.view import View
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.models.units import show_bytes, show_cost

_MOST_KERNELS = 40
_LONGEST_NAME = 60


def pictures(view: View) -> list[Picture]:
    """A bar for every kernel, in the order in which they run; and one for features that are on the host."""
    longest = sorted(view.kernels, key=lambda row: -row.cost.time_us)[:_MOST_KERNELS]
    shown = {row.number for row in longest}
    rows = [
        (
            f"{row.number} {_short(row.words)}",
            row.cost.time_us,
            f"{show_cost(row.cost.time_us, 'us')}, {show_bytes(int(row.cost.dram_bytes))}",
        )
        for row in view.kernels
        if row.number in shown
    ]
    if view.check.gather_us:
        rows.append(("features from the host", view.check.gather_us, show_cost(view.check.gather_us, "us")))
    caption = f"The forward pass is kernels 0 to {view.schedule.forward_count - 1}."
    if left_out := len(view.kernels) - len(longest):
        caption += f" {left_out} shorter ones are left out."
    return [Picture(labelled_bars(rows, "Time of each kernel"), heading="Where the time goes", caption=caption)]


def plan_png(view: View) -> bytes:
    """A PNG of the picture."""
    return png_bytes(view.plan.name, pictures(view))


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST_NAME else f"{words[: _LONGEST_NAME - 3]}..."
