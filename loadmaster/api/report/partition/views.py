"""What the partition kind shows of its plans: words, pages, pictures, tables."""

from __future__ import annotations

import csv as csv_
import io

from loadmaster.api.report.partition.pictures import pictures, plan_png
from loadmaster.api.report.partition.plan_page import plan_page, sections
from loadmaster.api.report.partition.view import View, view
from loadmaster.api.report.partition.words import details, infeasible, summary, verdict

__all__ = ["csv", "details", "html", "infeasible", "pictures", "png", "sections", "summary", "verdict", "view"]


def html(seen: View) -> bytes:
    """The page that opens offline."""
    return plan_page(seen).encode()


def png(seen: View) -> bytes:
    """What moves, by layer."""
    return plan_png(seen)


def csv(seen: View) -> bytes:
    """A row for every tensor: name, role, shape, its part on each axis."""
    text = io.StringIO()
    written = csv_.writer(text, lineterminator="\n")
    written.writerow(["tensor", "role", "shape", *(axis.name for axis in seen.problem.axes)])
    for tensor, parts in zip(seen.problem.tensors, seen.splits.placements, strict=True):
        written.writerow([tensor.name, tensor.role, "x".join(map(str, tensor.shape)), *parts])
    return text.getvalue().encode()
