"""Views of index plans: words, pages, pictures, tables."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.index.pictures import pictures, plan_png
from loadmaster.api.report.index.plan_page import plan_page, sections
from loadmaster.api.report.index.view import ShardRow, View, view
from loadmaster.api.report.index.words import details, infeasible, summary, verdict
from loadmaster.models.index.problem import Cost, Predicted
from loadmaster.models.index.serving import operations_us

__all__ = ["csv", "details", "html", "infeasible", "pictures", "png", "sections", "summary", "verdict", "view"]

_HEADER = ["shard", "host", "thread", "configuration", "measured", "read_ns", "write_ns", "time_us", "peak_bytes"]
_PREDICTED = ["predicted_read_ns", "predicted_write_ns", "predicted_time_us", "predicted_peak_bytes"]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """A PNG of where the time goes, and of what each host holds."""
    return plan_png(seen)


def csv(seen: View) -> bytes:
    """A row for every shard; what was predicted where it was measured, and empty where it is all there is."""
    return csv_bytes([*_HEADER, *_PREDICTED], _rows(seen))


def _rows(seen: View) -> Iterator[list[object]]:
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
