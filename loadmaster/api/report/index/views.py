"""Views of index plans: their page, pictures of shards and hosts, and the table of shards."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from loadmaster.api.report.bars import labelled_bars
from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.index.runs import runs_picture
from loadmaster.api.report.index.view import IndexView, ShardRow, view
from loadmaster.api.report.index.words import (
    SHARD_HEADER,
    change_words,
    details,
    infeasible,
    shard_rows,
    summary,
    tally,
    verdict,
)
from loadmaster.api.report.page import facts, html_table, page, shown
from loadmaster.api.report.picture import Picture, png_bytes
from loadmaster.api.report.views import mps_file
from loadmaster.api.report.words import counted, plan_facts
from loadmaster.models.index.formulation import formulate
from loadmaster.models.index.problem import Cost, Predicted
from loadmaster.models.index.serving import operations_us, options
from loadmaster.models.units import show_bytes, show_cost

__all__ = [
    "csv",
    "details",
    "infeasible",
    "mps",
    "pictures",
    "plan_page",
    "png",
    "sections",
    "summary",
    "verdict",
    "view",
]

_MOST_BARS = 40


def plan_page(view: IndexView) -> str:
    """The report of a feasible plan."""
    problem = view.problem
    keys = sum(shard.keys for shard in problem.shards)
    where = f"{counted(len(problem.shards), 'shard')} on {counted(len(problem.hosts), 'host')}"
    lead = f"{problem.title or problem.name}: {counted(keys, 'key')} in {where}"
    return page(view.plan.name, lead, sections(view))


def sections(view: IndexView) -> list[str]:
    """The sections of the report as HTML, for other pages too."""
    found = [
        _facts(view),
        *map(shown, pictures(view)),
        "<h2>The shards</h2>",
        html_table(SHARD_HEADER, shard_rows(view), numbers=(5, 6, 7, 8)),
    ]
    if view.plan.changes:
        told = "".join(f"<li>{escape(change_words(view.problem, change))}</li>" for change in view.plan.changes)
        found += ["<h2>Changes</h2>", f"<ul>{told}</ul>"]
    return found


def _facts(view: IndexView) -> str:
    measured = sum(row.cost.measured for row in view.rows)
    some = "" if measured == len(view.rows) else "; the others are predicted"
    time = f"{view.problem.objective}, in the horizon{'' if measured else ', predicted'}"
    return facts(
        plan_facts(
            view,
            ("time", time),
            [
                ("configurations", str(len({row.configuration for row in view.rows})), tally(view.rows)),
                *([("measured", str(measured), f"of {len(view.rows)} that were chosen{some}")] if measured else []),
            ],
            ("memory", "on"),
        )
    )


def pictures(view: IndexView) -> list[Picture]:
    """A bar for every shard, the longest first; one for what every host holds; a point for every candidate that ran."""
    longest = sorted(view.rows, key=lambda row: -row.choice.time_us)[:_MOST_BARS]
    times = [
        (
            f"{row.shard.name}, {row.configuration}",
            row.choice.time_us,
            f"{show_cost(row.choice.time_us, 'us')}, {show_bytes(row.choice.peak_bytes)}",
        )
        for row in longest
    ]
    left_out = len(view.rows) - len(longest)
    caption = f"{left_out} shorter ones are left out." if left_out else ""
    fullest = sorted(zip(view.problem.hosts, view.check.held_bytes, strict=True), key=lambda pair: -pair[1])
    held = [(host.name, float(size), show_bytes(size)) for host, size in fullest[:_MOST_BARS]]
    measured = [runs_picture(view.runs)] if view.runs else []
    return [
        Picture(labelled_bars(times, "Time of each shard"), heading="Where the time goes", caption=caption),
        Picture(labelled_bars(held, "Bytes of each host"), heading="What each host holds"),
        *measured,
    ]


def png(view: IndexView) -> bytes:
    """A PNG of the pictures."""
    return png_bytes(view.plan.name, pictures(view))


_HEADER = ["shard", "host", "thread", "configuration", "measured", "read_ns", "write_ns", "time_us", "peak_bytes"]
_PREDICTED = ["predicted_read_ns", "predicted_write_ns", "predicted_time_us", "predicted_peak_bytes"]


def csv(seen: IndexView) -> bytes:
    """A row for every shard; what was predicted where it was measured, and empty where it is all there is."""
    return csv_bytes([*_HEADER, *_PREDICTED], _rows(seen))


def _rows(seen: IndexView) -> Iterator[list[object]]:
    for row in seen.rows:
        thread = "" if row.choice.thread is None else row.choice.thread
        of = (row.shard.name, row.host, thread, row.configuration, "yes" if row.cost.measured else "no")
        times = (*_times(row.cost), f"{row.choice.time_us:.3f}")
        yield [*of, *times, row.choice.peak_bytes, *_predicted(row)]


def _times(cost: Cost | Predicted) -> tuple[str, str]:
    return f"{cost.read_ns.expected:.1f}", "" if cost.write_ns is None else f"{cost.write_ns.expected:.1f}"


def _predicted(row: ShardRow) -> tuple[str, ...]:
    was = row.cost.predicted
    if was is None:
        return ("",) * len(_PREDICTED)
    return (*_times(was), f"{operations_us(row.shard, was):.3f}", f"{was.peak_bytes.expected:.0f}")


def mps(seen: IndexView) -> bytes:
    """The program under the plan's budget. What only the check can tell is not in it."""
    problem, budget_bytes = seen.problem, seen.plan.budget_bytes
    of = [options(problem, shard) for shard in range(len(problem.shards))]
    formulated = formulate(problem, of, budget_bytes, unit_us=1.0)
    return mps_file(formulated.program, seen.plan, f"configurations of shards, hosts within {budget_bytes} bytes")
