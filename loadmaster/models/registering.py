"""Registrations that several kinds share (see :mod:`loadmaster.models.kinds`): exports, and a budget in bytes."""

from __future__ import annotations

from typing import Any

from loadmaster.models.kind import Export, Limit


def page(kind: str) -> Export:
    """Export of the HTML report, which every kind has."""
    return Export(
        name="html",
        help="a report that opens offline",
        media_type="text/html",
        write=f"loadmaster.api.report.{kind}.views:html",
        suffix=".html",
    )


def picture(kind: str, of: str) -> Export:
    """Export of a PNG picture, which every kind has; ``of`` says what it shows."""
    return Export(
        name="png",
        help=of,
        media_type="image/png",
        write=f"loadmaster.api.report.{kind}.views:png",
        suffix=".png",
    )


def trace(kind: str) -> Export:
    """Export of a Chrome trace: who does what when."""
    return Export(
        name="trace",
        help="a Chrome trace",
        media_type="application/json",
        write=f"loadmaster.api.report.{kind}.views:trace",
        suffix=".json",
        hint="open it at https://ui.perfetto.dev",
    )


def table(kind: str, of: str) -> Export:
    """Export of a CSV table; ``of`` says what it holds."""
    return Export(
        name="csv",
        help=of,
        media_type="text/csv",
        write=f"loadmaster.api.report.{kind}.views:csv",
        suffix=".csv",
    )


def program(kind: str) -> Export:
    """Export of the integer program that the kind's planner gives a solver, as MPS."""
    return Export(
        name="mps",
        help="the program behind it, for other solvers",
        media_type="text/plain",
        write=f"loadmaster.api.report.{kind}.program:mps",
        suffix=".mps",
    )


def budget(**of_the_kind: Any) -> Limit:
    """Make a limit in bytes; the kind gives its other fields."""
    return Limit(name="budget", plural="budgets", field="budget_bytes", unit="bytes", **of_the_kind)
