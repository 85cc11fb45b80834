"""What the index kind shows of its plans: words, pages, pictures, tables."""

from __future__ import annotations

import csv as csv_
import io

from loadmaster.api.report.index.pictures import pictures, plan_png
from loadmaster.api.report.index.plan_page import plan_page
from loadmaster.api.report.index.view import View, view
from loadmaster.api.report.index.words import details, infeasible, summary, verdict

__all__ = ["csv", "details", "html", "infeasible", "pictures", "png", "summary", "verdict", "view"]

_HEADER = ["shard", "host", "thread", "configuration", "measured", "read_ns", "write_ns", "time_us", "peak_bytes"]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """Where the time goes, and what each host holds."""
    return plan_png(seen)


def csv(seen: View) -> bytes:
    """A row for every shard."""
    text = io.StringIO()
    written = csv_.writer(text, lineterminator="\n")
    written.writerow(_HEADER)
    for row in seen.rows:
        thread = "" if row.choice.thread is None else row.choice.thread
        write = "" if row.cost.write_ns is None else f"{row.cost.write_ns.expected:.1f}"
        of = (row.shard.name, row.host, thread, row.configuration, "yes" if row.cost.measured else "no")
        figures = (f"{row.cost.read_ns.expected:.1f}", write, f"{row.choice.time_us:.3f}", row.choice.peak_bytes)
        written.writerow([*of, *figures])
    return text.getvalue().encode()
