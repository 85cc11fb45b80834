"""``simulate``: policies that know no plan, replayed on a step and compared with a plan for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from loadmaster.api.cli.files import expect_apart, read_document
from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.planning import INFEASIBLE, add_limits, add_options, options_of, report_progress
from loadmaster.api.cli.terminal import Terminal, interruptible
from loadmaster.api.report.views import Simulated, views_of
from loadmaster.errors import CancelledError, InputError
from loadmaster.models.files import expect_writable, write_text
from loadmaster.models.kind import Kind, resolve
from loadmaster.models.kinds import Plan, Problem, all_kinds, kind_named, read_plan, read_problem

# The policy that follows a plan.
_PLAN = "plan"


def simulate_arguments(simulate: argparse.ArgumentParser) -> None:
    """Add the arguments of ``simulate`` to its parser."""
    simulate.description = _simulate.__doc__
    simulate.add_argument("problem", metavar="TRACE.json", help="- is standard input")
    known = {kind.name: kind.policies for kind in all_kinds().values() if kind.simulate is not None}
    words = "; ".join(f"of {kind}: {', '.join(policies)}" for kind, policies in known.items())
    policy = simulate.add_argument(
        "--policy", nargs="+", metavar="NAME", help=f"one or several {words} (all but plan, which --plan adds)"
    )
    suggest(policy, dict.fromkeys(name for policies in known.values() for name in policies))
    simulate.add_argument("--plan", metavar="PLAN.json", help="of the policy plan; without it, one is made")
    simulate.add_argument("--html", metavar="REPORT.html", help="write a report that opens offline")
    simulate.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_limits(simulate)
    add_options(simulate)
    simulate.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Replay a step that repeats under policies that know no plan, and under a plan: times, waits, bytes."""
    expect_writable(arguments.html, "--html")
    expect_apart({"--html": arguments.html}, {"the trace": arguments.problem, "the plan": arguments.plan})
    problem = read_problem(read_document(arguments.problem, "TRACE.json"))
    kind = kind_named(problem.kind)
    if kind.simulate is None or kind.limit is None:
        kinds = ", ".join(k.name for k in all_kinds().values() if k.simulate is not None)
        raise InputError("TRACE.json", problem.kind, "has no policies to simulate", f"Give a trace of: {kinds}.")
    policies = _policies(kind, arguments.policy, arguments.plan)
    plan = None
    if _PLAN in policies:
        plan = _plan(problem, arguments, terminal)
        if plan.status == "infeasible":
            terminal.error(views_of(plan.kind).infeasible(plan))
            return INFEASIBLE
    limit = options_of(arguments, problem).given_limit
    try:
        found: Simulated = resolve(kind.simulate)(problem, policies, limit, plan)
    except InputError as error:
        if error.field != kind.limit.field:
            raise
        raise InputError(kind.limit.flag, error.value, error.problem, error.remedy) from None
    if arguments.json:
        terminal.json(found.document)
    else:
        terminal.data(found.text)
    if arguments.html is not None:
        write_text(arguments.html, found.html(), "--html")
        terminal.say(f"html: {arguments.html}")
    return 0


def _policies(kind: Kind, given: Sequence[str] | None, plan: str | None) -> list[str]:
    """The policies asked for, each once; otherwise all that need no plan, and the plan where there is one."""
    if given is None:
        return [name for name in kind.policies if name != _PLAN or plan is not None]
    for name in given:
        if name not in kind.policies:
            raise InputError("--policy", name, "is no policy", f"Choose of: {', '.join(kind.policies)}.")
    if plan is not None and _PLAN not in given:
        raise InputError("--plan", plan, "is of no policy that was asked for", "Add plan to --policy, or leave it out.")
    return list(dict.fromkeys(given))


def _plan(problem: Problem, arguments: argparse.Namespace, terminal: Terminal) -> Plan:
    """The plan given, or one made now."""
    if arguments.plan is not None:
        if arguments.problem == arguments.plan == "-":
            raise InputError("--plan", "-", "cannot be standard input too", "Give the trace or the plan as a file.")
        plan = read_plan(read_document(arguments.plan, "--plan"))
        if plan.kind != problem.kind:
            remedy = "Give the trace that the plan was made for."
            raise InputError("--plan", plan.kind, f"is another kind than the trace's, {problem.kind}", remedy)
        return plan
    from loadmaster.planner import plan as find

    with interruptible(terminal) as cancelled:
        found = find(
            problem,
            options_of(arguments, problem),
            on_progress=lambda progress: report_progress(terminal, progress, problem.unit),
            cancelled=cancelled,
        )
    if found.stopped_by == "cancel" and found.objective is None:
        raise CancelledError("cancelled before a plan was found")
    return found
