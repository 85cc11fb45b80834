"""``frontier``: the same problem under several budgets, as a table and as pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from loadmaster.api.cli.files import expect_writable, write_json, write_text
from loadmaster.api.cli.interrupt import interruptible
from loadmaster.api.cli.planning import INFEASIBLE, INTERRUPTED, add_options, options_of, report_progress
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.api.report.memory.frontier_page import feasible, frontier_page
from loadmaster.api.units import parse_budget, show_bytes, show_cost, show_share
from loadmaster.errors import InputError, LimitReachedError, MissingExtraError
from loadmaster.models.kinds import Problem, read_problem, write_plan
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.presets import reference

_LARGEST_COUNT = 64


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's command."""
    sweep = commands.add_parser("frontier", help="plan under a sweep of budgets", description=_frontier.__doc__)
    sweep.add_argument("problem", metavar="PROBLEM.json")
    sweep.add_argument("--budgets", metavar="SIZE,SIZE,...", help="budgets to plan for, each as in plan --budget")
    sweep.add_argument("--count", type=int, default=6, metavar="N", help="how many, where none are given (6)")
    sweep.add_argument("--workers", type=int, default=2, metavar="N", help="budgets planned at a time (2)")
    add_options(sweep)
    sweep.add_argument("-o", "--output", metavar="FRONTIER.json", help="write all plans here")
    sweep.add_argument("--png", metavar="PICTURE.png", help="default: NAME-frontier.png")
    sweep.add_argument("--html", metavar="REPORT.html", help="default: NAME-frontier.html")
    sweep.add_argument("--no-picture", action="store_true", help="neither PNG nor HTML")
    sweep.add_argument("--json", action="store_true", help="print the points as JSON")
    sweep.set_defaults(run=_frontier)


def _frontier(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Plan a problem under several budgets: how much time does how much memory buy?"""
    for flag, path in (("-o", arguments.output), ("--png", arguments.png), ("--html", arguments.html)):
        expect_writable(path, flag)
    for field, value in (("--count", arguments.count), ("--workers", arguments.workers)):
        if not 1 <= value <= _LARGEST_COUNT:
            raise InputError(field, value, f"is not between 1 and {_LARGEST_COUNT}", "Give a number in this range.")
    problem = read_problem(arguments.problem)
    options = options_of(arguments, problem)
    from loadmaster.planner import frontier

    with interruptible(terminal) as cancelled:
        found = frontier(
            problem,
            options,
            budgets_bytes=_budgets(arguments.budgets, problem),
            count=arguments.count,
            workers=arguments.workers,
            on_progress=lambda progress: report_progress(terminal, progress, problem.unit),
            cancelled=cancelled,
        )
        stopped = cancelled()
    plans = [point.plan for point in found.points]
    if arguments.output is not None:
        points = [{"budget_bytes": p.budget_bytes, "plan": write_plan(p)} for p in plans]
        write_json(
            arguments.output, {"schema": "loadmaster/frontier/1", "kind": problem.kind, "points": points}, terminal
        )
    if arguments.json:
        terminal.json([_point(p) for p in plans])
    elif arguments.output != "-":
        header = ["budget", "status", "step", "over unlimited", "bound", "gap"]
        terminal.data(table([_row(p) for p in plans], header))
    if feasible(plans) and not arguments.no_picture:
        _draw(problem, plans, arguments, terminal)
    for budget_bytes in found.undecided:
        terminal.say(f"{show_bytes(budget_bytes)}: the limit came before any plan; give more with --time-limit")
    if stopped:
        return INTERRUPTED
    if feasible(plans):
        return 0
    return LimitReachedError.exit_status if found.undecided else INFEASIBLE


def _budgets(text: str | None, problem: Problem) -> list[int] | None:
    if text is None:
        return None
    return sorted({parse_budget(part, "--budgets").resolve(problem, "--budgets") for part in text.split(",")})


def _draw(problem: Problem, plans: Sequence[MemoryPlan], arguments: argparse.Namespace, terminal: Terminal) -> None:
    title = problem.title or problem.name
    published = reference(problem.name)
    html = arguments.html or f"{problem.name}-frontier.html"
    write_text(html, frontier_page(title, plans, published), "--html")
    terminal.say(f"report: {html}")
    png = arguments.png or f"{problem.name}-frontier.png"
    try:
        from loadmaster.api.report.memory.pictures import frontier_png

        frontier_png(png, title, plans, published)
        terminal.say(f"picture: {png}")
    except ModuleNotFoundError:
        if arguments.png:
            raise
        terminal.say(f"no picture: {MissingExtraError('matplotlib', 'solver')}")


def _point(plan: MemoryPlan) -> dict[str, object]:
    names = ("budget_bytes", "status", "objective", "bound", "gap", "overhead_gap", "unit", "unconstrained")
    return {name: getattr(plan, name) for name in names}


def _row(plan: MemoryPlan) -> list[str]:
    row = [show_bytes(plan.budget_bytes), plan.status]
    if plan.objective is None:
        least = plan.infeasibility.minimum_budget_bytes if plan.infeasibility else None
        return [*row, "" if least is None else f"needs {show_bytes(least)}", "", "", ""]
    over = show_share(plan.objective / plan.unconstrained - 1) if plan.unconstrained else ""
    bound = "" if plan.bound is None else show_cost(plan.bound, plan.unit)
    return [*row, show_cost(plan.objective, plan.unit), over, bound, show_share(plan.gap)]
