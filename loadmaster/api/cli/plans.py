"""``plan`` and ``check``: find a plan, in this process or on a server, and replay one against its problem."""

from __future__ import annotations

import argparse
import re

from loadmaster.api.cli.files import expect_apart, read_document
from loadmaster.api.cli.planning import add_limits, add_options, add_prices, finish, options_of, report_progress
from loadmaster.api.cli.server import add_server
from loadmaster.api.cli.service import plan_on_server
from loadmaster.api.cli.terminal import Terminal, interruptible
from loadmaster.api.report.views import views_of
from loadmaster.errors import InputError
from loadmaster.models.checking import Checked, checked, under_both_limits
from loadmaster.models.files import expect_writable
from loadmaster.models.kinds import Plan, kind_named, read_plan, read_problem
from loadmaster.models.units import show_cost

# A plan can be wrong in tens of thousands of places.
_SHOWN = 20


def plan_arguments(plan: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan`` to its parser."""
    plan.description = _plan.__doc__
    plan.add_argument("problem", metavar="PROBLEM.json", help="- is standard input")
    plan.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan here")
    add_limits(plan)
    add_options(plan)
    add_prices(plan)
    add_server(plan)
    plan.add_argument("--json", action="store_true", help="print the plan without its schedule as JSON")
    plan.set_defaults(run=_plan)


def check_arguments(check: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check`` to its parser."""
    check.description = _check.__doc__
    check.add_argument("problem", metavar="PROBLEM.json", help="- is standard input")
    check.add_argument("plan", metavar="PLAN.json", help="- is standard input")
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    check.set_defaults(run=_check)


def _plan(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Find the best plan, with a proof of how good it is, under the limit of its kind."""
    expect_writable(arguments.output, "-o")
    expect_apart({"-o": arguments.output}, {"the problem": arguments.problem})
    problem = read_problem(read_document(arguments.problem, "PROBLEM.json"))
    options = options_of(arguments, problem)
    if arguments.server is not None:
        return plan_on_server(problem, options, arguments, terminal)
    from loadmaster.planner import plan

    with interruptible(terminal) as cancelled:
        found = plan(
            problem,
            options,
            on_progress=lambda progress: report_progress(terminal, progress, problem.unit),
            cancelled=cancelled,
        )
    return finish(found, arguments, terminal)


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Replay a plan against its problem, blind to how it was found, and recompute all else that it states. What nobody
    can recompute is taken on trust, and named. Exit status 1 when something is false."""
    if arguments.problem == arguments.plan == "-":
        raise InputError("PLAN.json", "-", "cannot be standard input too", "Give the problem or the plan as a file.")
    problem = read_problem(read_document(arguments.problem, "PROBLEM.json"))
    plan = read_plan(read_document(arguments.plan, "PLAN.json"))
    kind = kind_named(problem.kind)
    found = checked(kind, problem, plan)
    verdict, violations = found.verdict, found.verdict.violations
    if arguments.json:
        judged = {"problem_sha256": problem.sha256, **verdict.summary(), "ok": verdict.ok, "violations": violations}
        terminal.json({**judged, "taken_on_trust": found.trusted, "least_objective": found.least})
        return 0 if verdict.ok else 1
    views = views_of(plan.kind)
    is_plan = plan.status != "infeasible"
    said = views.verdict(under_both_limits(kind, problem, plan), verdict) if is_plan else views.infeasible(plan)
    terminal.data(f"{'passed' if verdict.ok else 'FAILED'}: {said}")
    for violation in violations[:_SHOWN]:
        terminal.data(f"  {violation}")
    if len(violations) > _SHOWN:
        terminal.data(f"  and {len(violations) - _SHOWN} more (--json lists them all)")
    if found.trusted:
        terminal.say(f"taken on trust: {'; '.join(_on_trust(plan, found))}")
    return 0 if verdict.ok else 1


def _on_trust(plan: Plan, found: Checked) -> list[str]:
    """List what was taken on trust, the bound first; entries of one list or block once."""
    names = dict.fromkeys(re.sub(r"\[\d+\]", "", path) for path in found.trusted if path != "bound")
    blocks = dict.fromkeys(name.split(".")[0] if name.startswith(("seconds.", "solver.")) else name for name in names)
    said = [", ".join(blocks)] if blocks else []
    if "bound" not in found.trusted or plan.bound is None:
        return said
    known = "" if found.least is None else f"; {show_cost(found.least, plan.unit)} is known"
    return [f"a bound of {show_cost(plan.bound, plan.unit)} (gap and status follow from it{known})", *said]
