"""``plan`` and ``check``: the work itself, in this process or on a server."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.files import expect_apart, read_document
from loadmaster.api.cli.interrupt import interruptible
from loadmaster.api.cli.planning import add_limits, add_options, finish, options_of, report_progress
from loadmaster.api.cli.server import add_server
from loadmaster.api.cli.service import plan_on_server
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.views import views_of
from loadmaster.errors import InputError
from loadmaster.models.files import expect_writable
from loadmaster.models.kinds import Plan, check_plan, read_plan, read_problem, under_both_limits

# A plan can be wrong in tens of thousands of places.
_SHOWN = 20


def plan_arguments(plan: argparse.ArgumentParser) -> None:
    """The arguments of ``plan``."""
    plan.description = _plan.__doc__
    plan.add_argument("problem", metavar="PROBLEM.json", help="- is standard input")
    plan.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan here")
    add_limits(plan)
    add_options(plan)
    add_server(plan)
    plan.add_argument("--json", action="store_true", help="print the plan without its schedule as JSON")
    plan.set_defaults(run=_plan)


def check_arguments(check: argparse.ArgumentParser) -> None:
    """The arguments of ``check``."""
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
    """Replay a plan against its problem, blind to how it was found. Exit status 1 when it does not hold."""
    if arguments.problem == arguments.plan == "-":
        raise InputError("PLAN.json", "-", "cannot be standard input too", "Give the problem or the plan as a file.")
    problem = read_problem(read_document(arguments.problem, "PROBLEM.json"))
    plan = read_plan(read_document(arguments.plan, "PLAN.json"))
    verdict = check_plan(problem, plan)
    claims = _false_claims(plan, verdict.objective)
    ok, violations = verdict.ok and not claims, [*claims, *verdict.violations]
    if arguments.json:
        terminal.json({"problem_sha256": problem.sha256, **verdict.summary(), "ok": ok, "violations": violations})
        return 0 if ok else 1
    said = views_of(plan.kind).verdict(under_both_limits(problem, plan), verdict)
    terminal.data(f"{'passed' if ok else 'FAILED'}: {said}")
    for violation in violations[:_SHOWN]:
        terminal.data(f"  {violation}")
    if len(violations) > _SHOWN:
        terminal.data(f"  and {len(violations) - _SHOWN} more (--json lists them all)")
    return 0 if ok else 1


def _false_claims(plan: Plan, objective: float) -> list[str]:
    """What the plan says of itself and the replay does not bear out."""
    claims = []
    tolerance = 1e-6 * max(1.0, abs(objective))
    if plan.objective is None or abs(plan.objective - objective) > tolerance:
        claims.append(f"the plan claims an objective of {plan.objective}, the replay gives {objective}")
    if plan.bound is not None and plan.bound > objective + tolerance:
        claims.append(f"the plan claims a bound of {plan.bound}, above its own objective of {objective}")
    return claims
