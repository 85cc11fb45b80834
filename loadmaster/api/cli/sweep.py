"""``frontier``: the same problem under several limits, as a table and as pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from loadmaster.api.cli.files import expect_apart, read_document, write_json
from loadmaster.api.cli.planning import (
    INFEASIBLE,
    INTERRUPTED,
    add_limits,
    add_options,
    add_prices,
    by_flag,
    given_limits,
    planning_options,
    report_progress,
)
from loadmaster.api.cli.terminal import Terminal, interruptible
from loadmaster.api.columns import table
from loadmaster.api.report.extras import Extras, extras_of, feasible
from loadmaster.api.report.frontier import frontier_page, frontier_png, frontier_rows, price_rows
from loadmaster.api.report.measured import read_measured
from loadmaster.api.report.views import file_name
from loadmaster.errors import InputError, LimitReachedError, MissingExtraError
from loadmaster.models.envelope import Plan
from loadmaster.models.files import expect_writable, write_bytes, write_text
from loadmaster.models.kind import Limit
from loadmaster.models.kinds import Problem, limit_of, read_problem, write_plan
from loadmaster.models.units import show_limit

if TYPE_CHECKING:
    from loadmaster.planner import Frontier

_LARGEST_COUNT = 64


def frontier_arguments(sweep: argparse.ArgumentParser) -> None:
    """Add the arguments of ``frontier`` to its parser."""
    sweep.description = _frontier.__doc__
    sweep.add_argument("problem", metavar="PROBLEM.json", help="- is standard input")
    add_limits(sweep, several=True)
    sweep.add_argument("--count", type=int, default=6, metavar="N", help="how many, where none are given (6)")
    sweep.add_argument("--workers", type=int, default=2, metavar="N", help="planned at a time (2)")
    add_options(sweep)
    sweep.add_argument(
        "--restrictions",
        action="store_true",
        help="plan it with fewer choices too, as further curves; memory with a host link: recompute only, offload only",
    )
    add_prices(sweep)
    sweep.add_argument(
        "--measured",
        metavar="POINTS.csv",
        help="draw these with the plans: CSV or JSON with method, step_us, and peak_bytes or budget_bytes",
    )
    sweep.add_argument("-o", "--output", metavar="FRONTIER.json", help="write all plans here")
    sweep.add_argument("--png", metavar="PICTURE.png", help="default: NAME-frontier.png")
    sweep.add_argument("--html", metavar="REPORT.html", help="default: NAME-frontier.html")
    sweep.add_argument("--no-picture", action="store_true", help="neither PNG nor HTML")
    sweep.add_argument("--json", action="store_true", help="print the points as JSON")
    sweep.set_defaults(run=_frontier)


def _frontier(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Plan a problem under several limits: how much does a little more of it bring?"""
    written = {"-o": arguments.output, "--png": arguments.png, "--html": arguments.html}
    for flag, path in written.items():
        expect_writable(path, flag)
    expect_apart(written, {"the problem": arguments.problem, "the measured points": arguments.measured})
    for field, value in (("--count", arguments.count), ("--workers", arguments.workers)):
        if not 1 <= value <= _LARGEST_COUNT:
            raise InputError(field, value, f"is not between 1 and {_LARGEST_COUNT}", "Give a number in this range.")
    problem = read_problem(read_document(arguments.problem, "PROBLEM.json"))
    limits = given_limits(arguments, problem, several=True)
    limit = limit_of(problem.kind)
    options = planning_options(arguments, limit=None)
    measured = () if arguments.measured is None else read_measured(arguments.measured, problem, limit, "--measured")
    from loadmaster.planner import frontier

    with interruptible(terminal) as cancelled, by_flag(limit, several=True):
        found = frontier(
            problem,
            options,
            limits=limits,
            count=arguments.count,
            workers=arguments.workers,
            restrictions=arguments.restrictions,
            prices=arguments.prices,
            on_progress=lambda progress: report_progress(terminal, progress, problem.unit),
            cancelled=cancelled,
        )
        stopped = cancelled()
    plans = [point.plan for point in found.points]
    if arguments.output is not None:
        document: dict[str, object] = {
            "schema": "loadmaster/frontier/1",
            "kind": problem.kind,
            "points": _points(limit, found),
        }
        if arguments.restrictions:
            document["restrictions"] = {name: _points(limit, of) for name, of in found.restrictions.items()}
        if arguments.prices:
            document["prices"] = [{limit.field: value, "prices": _prices(found, value)} for value in found.prices]
        write_json(arguments.output, document, terminal)
    extras = extras_of(problem, plans).beside(found, measured)
    if arguments.json:
        terminal.json([_point(limit, p) | _narrower(limit, p, found) | _priced(limit, p, found) for p in plans])
    elif arguments.output != "-":
        header, rows = frontier_rows(limit, plans, extras)
        terminal.data(table(rows, header))
        if extras.prices:
            header, rows = price_rows(limit, extras, problem.unit)
            terminal.data(f"\n{table(rows, header)}")
    if feasible(plans) and not arguments.no_picture:
        _draw(problem, limit, plans, extras, arguments, terminal)
    late = [(value, "") for value in found.undecided]
    late += [(value, f", {name}") for name, of in found.restrictions.items() for value in of.undecided]
    for value, which in late:
        shown = f"{show_limit(value, limit.unit)}{which}"
        terminal.say(f"{shown}: the limit came before any plan; give more with --time-limit")
    if stopped:
        return INTERRUPTED
    if feasible(plans):
        return 0
    return LimitReachedError.exit_status if found.undecided else INFEASIBLE


def _draw(
    problem: Problem,
    limit: Limit,
    plans: Sequence[Plan],
    extras: Extras,
    arguments: argparse.Namespace,
    terminal: Terminal,
) -> None:
    title = problem.title or problem.name
    html = arguments.html or file_name(problem.name, "-frontier.html")
    write_text(html, frontier_page(title, limit, plans, extras), "--html")
    terminal.say(f"report: {html}")
    png = arguments.png or file_name(problem.name, "-frontier.png")
    try:
        write_bytes(png, frontier_png(title, limit, plans, extras), "--png")
        terminal.say(f"picture: {png}")
    except ModuleNotFoundError:
        if arguments.png:
            raise
        terminal.say(f"no picture: {MissingExtraError('resvg-py', 'solver')}")


def _points(limit: Limit, found: Frontier) -> list[dict[str, object]]:
    """The whole plans of a frontier as documents, each with its limit."""
    return [{limit.field: limit.of_plan(point.plan), "plan": write_plan(point.plan)} for point in found.points]


def _narrower(limit: Limit, plan: Plan, found: Frontier) -> dict[str, object]:
    """The points of the restrictions under a plan's limit, if there are restrictions."""
    value = limit.of_plan(plan)
    beside = {
        name: next((_point(limit, point.plan) for point in of.points if limit.of_plan(point.plan) == value), None)
        for name, of in found.restrictions.items()
    }
    return {"restrictions": beside} if beside else {}


def _priced(limit: Limit, plan: Plan, found: Frontier) -> dict[str, object]:
    """The prices at a plan's limit, if there are any."""
    value = limit.of_plan(plan)
    return {"prices": _prices(found, value)} if value in found.prices else {}


def _prices(found: Frontier, value: int) -> list[dict[str, object]]:
    return [asdict(price) for price in found.prices[value]]


def _point(limit: Limit, plan: Plan) -> dict[str, object]:
    """The envelope of a plan, and what its kind says of its cost beyond that."""
    names = (limit.field, "status", "objective", "bound", "gap", "overhead_gap", "unit", "unconstrained")
    return {name: getattr(plan, name) for name in names if hasattr(plan, name)}
