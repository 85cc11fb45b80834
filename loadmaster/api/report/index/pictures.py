"""The pictures of an index plan: where the time goes, what each host holds, and how far off predictions were."""

from __future__ import annotations

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.index.runs import runs_picture
from loadmaster.api.report.index.view import View
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.models.units import show_bytes, show_cost

_MOST_BARS = 40
_LONGEST_NAME = 60


def pictures(view: View) -> list[Picture]:
    """A bar for every shard, the longest first; one for what every host holds; a point for every candidate that ran."""
    longest = sorted(view.rows, key=lambda row: -row.choice.time_us)[:_MOST_BARS]
    times = [
        (
            _short(f"{row.shard.name}, {row.configuration}"),
            row.choice.time_us,
            f"{show_cost(row.choice.time_us, 'us')}, {show_bytes(row.choice.peak_bytes)}",
        )
        for row in longest
    ]
    left_out = len(view.rows) - len(longest)
    caption = f"{left_out} shorter ones are left out." if left_out else ""
    fullest = sorted(zip(view.problem.hosts, view.check.held_bytes, strict=True), key=lambda pair: -pair[1])
    held = [(_short(host.name), float(size), show_bytes(size)) for host, size in fullest[:_MOST_BARS]]
    measured = [runs_picture(view.runs)] if view.runs else []
    return [
        Picture(labelled_bars(times, "Time of each shard"), heading="Where the time goes", caption=caption),
        Picture(labelled_bars(held, "Bytes of each host"), heading="What each host holds"),
        *measured,
    ]


def plan_png(view: View) -> bytes:
    """A PNG of the pictures."""
    return png_bytes(view.plan.name, pictures(view))


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST_NAME else f"{words[: _LONGEST_NAME - 3]}..."
