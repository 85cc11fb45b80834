"""Plans and frontiers in a notebook: a table and pictures, as markup that leaves the page around it alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.api.report.frontier import Extras, feasible, frontier_picture, frontier_rows
from loadmaster.api.report.picture import Picture, sheet_svg
from loadmaster.api.report.views import views_of
from loadmaster.errors import InputError
from loadmaster.models.documents import Document, expect_problem
from loadmaster.models.envelope import Plan
from loadmaster.models.kind import Problem
from loadmaster.models.kinds import kind_named, limit_of, read_plan, read_problem
from loadmaster.models.units import show_cost, show_limit, show_share

if TYPE_CHECKING:
    from loadmaster.planner import Frontier


class ShownPair:
    """A plan with its problem, as a notebook draws it and ``print`` says it."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan

    def __repr__(self) -> str:
        views = views_of(self.plan.kind)
        words = views.summary(self.plan)
        return words if self.plan.status == "infeasible" else f"{words}\n{views.details(self._view())}"

    def _repr_html_(self) -> str:
        return plan_html(self.plan, self.problem)

    def _view(self) -> Any:
        return views_of(self.plan.kind).view(self.problem, self.plan)


def show(problem: Problem | Document | str | Path, plan: Plan | Document | str | Path) -> ShownPair:
    """What a plan does to its problem: with pictures in a notebook, in words elsewhere.

    Raises:
        InputError: the plan is another problem's, or does not hold.
    """
    typed, answer = read_problem(problem), read_plan(plan)
    if answer.kind != typed.kind:
        remedy = "Give the problem the plan was made for."
        raise InputError("plan.kind", answer.kind, f"is another kind than the problem's, {typed.kind}", remedy)
    expect_problem(answer.problem_sha256, typed.sha256)
    shown = ShownPair(typed, answer)
    if answer.status != "infeasible":
        shown._view()
    return shown


def plan_html(plan: Plan, problem: Problem | None = None) -> str:
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
    return _cell(plan.name, f"<table>{body}</table>", [] if problem is None else _pictures(problem, plan))


def frontier_html(found: Frontier) -> str:
    """A frontier as its table and its curve."""
    plans = [point.plan for point in found.points]
    if not plans:
        return _cell(found.name, f"<p>{len(found.undecided)} limits, none decided</p>", [])
    limit = limit_of(plans[0].kind)
    header, rows = frontier_rows(limit, plans, Extras())
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    curve = feasible(plans)
    table = f"<table><tr>{head}</tr>{body}</table>"
    return _cell(found.name, table, [frontier_picture(limit, curve, Extras())] if curve else [])


def _pictures(problem: Problem, plan: Plan) -> Sequence[Picture]:
    """Those of the kind, if it draws any: its views say so by a function ``pictures(view)``."""
    views = views_of(plan.kind)
    draw = getattr(views, "pictures", None)
    if draw is None or plan.status == "infeasible":
        return ()
    try:
        found: Sequence[Picture] = draw(views.view(problem, plan))
    except InputError:  # of another problem, or one that does not hold: the table is all there is to show
        return ()
    return found


def _cell(title: str, table: str, pictures: Sequence[Picture]) -> str:
    drawn = sheet_svg("", pictures) if pictures else ""
    return f"<div><strong>{escape(title)}</strong>{table}{drawn}</div>"
