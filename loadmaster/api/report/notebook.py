"""Plans and frontiers in a notebook: a table and pictures, as markup that leaves the page around it alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from loadmaster.api.columns import table
from loadmaster.api.report.extras import Extras, extras_of, feasible
from loadmaster.api.report.frontier import curve_picture, frontier_rows, price_rows
from loadmaster.api.report.measured import Measured, Points, measured_rows, read_measured
from loadmaster.api.report.picture import Picture, sheet_svg
from loadmaster.api.report.views import view_of, views_of
from loadmaster.errors import InputError
from loadmaster.models.documents import Document, expect_problem
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Problem
from loadmaster.models.kinds import kind_named, limit_of, read_measurement, read_plan, read_problem
from loadmaster.models.units import show_cost, show_limit, show_share

if TYPE_CHECKING:
    from loadmaster.planner import Frontier


class ShownPair:
    """A plan with its problem, as a notebook draws it and ``print`` says it."""

    def __init__(self, problem: Problem, plan: Plan, measured: Any = None) -> None:
        self.problem, self.plan, self.measured = problem, plan, measured

    def __repr__(self) -> str:
        views = views_of(self.plan.kind)
        words = views.summary(self.plan)
        return words if self.plan.status == "infeasible" else f"{words}\n{views.details(self._view())}"

    def _repr_html_(self) -> str:
        return plan_html(self.plan, self.problem, self.measured)

    def _view(self) -> Any:
        return view_of(self.problem, self.plan, self.measured)


class ShownFrontier:
    """A frontier of a problem and what it is compared with, as a notebook draws it and ``print`` says it."""

    def __init__(self, problem: Problem, found: Frontier, measured: Sequence[Measured] = ()) -> None:
        self.problem, self.found, self.measured = problem, found, measured

    def __repr__(self) -> str:
        plans = [point.plan for point in self.found.points]
        if not plans:
            return _nothing(self.found)
        limit = limit_of(self.problem.kind)
        header, rows = frontier_rows(limit, plans, _extras(self.found, self.problem))
        words = table(rows, header)
        if self.measured:
            header, rows = measured_rows(limit, self.measured, self.problem.unit)
            words += f"\n\n{table(rows, header)}"
        return words

    def _repr_html_(self) -> str:
        return frontier_html(self.found, self.problem, self.measured)


def show(
    problem: Problem | Document | str | Path,
    plan: Plan | Frontier | Document | str | Path,
    *,
    measured: Points | Any = None,
) -> ShownPair | ShownFrontier:
    """Show what a plan does to its problem, or what a frontier says of it: in pictures or in words. ``measured``:
    points to draw with a frontier, a file or rows (:func:`loadmaster.api.report.measured.read_measured`); the
    measurement of a plan, as ``fitted.measurement`` or the file that ``fit`` wrote.

    Raises InputError if the plan is another problem's or does not hold, or the measurement cannot be read or is of
    another plan.
    """
    typed = read_problem(problem)
    if hasattr(plan, "points"):  # a Frontier, told apart without loading the planner
        return _shown_frontier(typed, cast("Frontier", plan), measured)
    answer = read_plan(cast(Plan, plan))
    if answer.kind != typed.kind:
        remedy = "Give the problem the plan was made for."
        raise InputError("plan.kind", answer.kind, f"is another kind than the problem's, {typed.kind}", remedy)
    expect_problem(answer.problem_sha256, typed.sha256)
    shown = ShownPair(typed, answer, None if measured is None else read_measurement(measured, answer))
    if answer.status != "infeasible":
        shown._view()
    return shown


def _shown_frontier(problem: Problem, found: Frontier, measured: Points | None) -> ShownFrontier:
    for point in found.points:
        expect_problem(point.plan.problem_sha256, problem.sha256)
    points = () if measured is None else read_measured(measured, problem, limit_of(problem.kind))
    return ShownFrontier(problem, found, points)


def plan_html(plan: Plan, problem: Problem | None = None, measured: Any = None) -> str:
    """A plan as a table, and in the kind's pictures where its problem is at hand and the plan holds."""
    limit = kind_named(plan.kind).limit
    rows: list[tuple[str, str]] = [("status", plan.status)]
    if plan.objective is not None:
        rows.append(("objective", show_cost(plan.objective, plan.unit)))
    if plan.bound is not None:
        rows.append(("bound", f"{show_cost(plan.bound, plan.unit)}, gap {show_share(plan.gap)}"))
    if limit is not None:
        rows.append((limit.name, show_limit(limit.of_plan(plan), limit.unit)))
    if plan.status == "infeasible":
        rows.append(("why", views_of(plan.kind).infeasible(plan)))
    rows.append(("method", f"{plan.method}, stopped by {plan.stopped_by}"))
    rows.append(("seconds", ", ".join(f"{what} {seconds:.2f}" for what, seconds in plan.seconds.items())))
    body = "".join(f"<tr><th>{escape(what)}</th><td>{escape(text)}</td></tr>" for what, text in rows)
    return _cell(plan.name, f"<table>{body}</table>", [] if problem is None else _pictures(problem, plan, measured))


def frontier_html(found: Frontier, problem: Problem | None = None, measured: Sequence[Measured] = ()) -> str:
    """A frontier as its table and its curve, with what its kind adds where its problem is at hand."""
    plans = [point.plan for point in found.points]
    if not plans:
        return _cell(found.name, f"<p>{_nothing(found)}</p>", [])
    limit, extras, curve = limit_of(plans[0].kind), _extras(found, problem, measured), feasible(plans)
    tables = _rows_html(*frontier_rows(limit, plans, extras))
    if extras.prices:
        tables += _rows_html(*price_rows(limit, extras, plans[0].unit))
    if measured:
        tables += _rows_html(*measured_rows(limit, measured, plans[0].unit))
    return _cell(found.name, tables, [curve_picture(limit, curve, extras)] if curve else [])


def _rows_html(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _nothing(found: Frontier) -> str:
    return f"{len(found.undecided)} limits, none decided"


def _extras(found: Frontier, problem: Problem | None, measured: Sequence[Measured] = ()) -> Extras:
    return extras_of(problem, [point.plan for point in found.points]).beside(found, measured)


def _pictures(problem: Problem, plan: Plan, measured: Any) -> Sequence[Picture]:
    """Pictures of a plan, if its kind draws any: its views say so by a function ``pictures(view)``."""
    draw = getattr(views_of(plan.kind), "pictures", None)
    if draw is None or plan.status == "infeasible":
        return ()
    try:
        found: Sequence[Picture] = draw(view_of(problem, plan, measured))
    except InputError:  # of another problem, or one that does not hold: the table is all there is to show
        return ()
    return found


def _cell(title: str, table: str, pictures: Sequence[Picture]) -> str:
    drawn = sheet_svg("", pictures) if pictures else ""
    return f"<div><strong>{escape(title)}</strong>{table}{drawn}</div>"
