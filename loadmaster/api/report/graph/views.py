"""Views of graph plans: words, pages, pictures, tables."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.graph.pictures import pictures, plan_png
from loadmaster.api.report.graph.plan_page import plan_page, sections
from loadmaster.api.report.graph.view import View, view
from loadmaster.api.report.graph.words import details, infeasible, summary, verdict

__all__ = ["csv", "details", "html", "infeasible", "pictures", "png", "sections", "summary", "verdict", "view"]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """A PNG of where the time goes, by kernel."""
    return plan_png(seen)


def csv(seen: View) -> bytes:
    """A row for every kernel: what it is, what it stores, its time, bytes and products."""
    return csv_bytes(["kernel", "template", "rows", "over", "stores", "time_us", "dram_bytes", "flops"], _rows(seen))


def _rows(seen: View) -> Iterator[list[object]]:
    for row in seen.kernels:
        stores = " ".join(seen.program.values[n].name for n in row.kernel.stores)
        of = (row.number, row.kernel.template, row.kernel.rows, row.kernel.over or "", stores)
        yield [*of, f"{row.cost.time_us:.3f}", f"{row.cost.dram_bytes:.0f}", f"{row.cost.flops:.0f}"]
