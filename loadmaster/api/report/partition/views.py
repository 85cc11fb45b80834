"""Views of partition plans: words, pages, pictures, tables."""

from __future__ import annotations

from loadmaster.api.report.csv_text import csv_bytes
from loadmaster.api.report.partition.pictures import pictures, plan_png
from loadmaster.api.report.partition.plan_page import plan_page, sections
from loadmaster.api.report.partition.view import View, view
from loadmaster.api.report.partition.words import details, infeasible, summary, verdict

__all__ = ["csv", "details", "html", "infeasible", "pictures", "png", "sections", "summary", "verdict", "view"]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """A PNG of what moves, by layer."""
    return plan_png(seen)


def csv(seen: View) -> bytes:
    """A row for every tensor: name, role, shape, its part on each axis."""
    rows = (
        [tensor.name, tensor.role, "x".join(map(str, tensor.shape)), *parts]
        for tensor, parts in zip(seen.problem.tensors, seen.splits.placements, strict=True)
    )
    return csv_bytes(["tensor", "role", "shape", *(axis.name for axis in seen.problem.axes)], rows)
