"""``plan``, ``check`` and ``frontier``: the work itself, in this process or on a server."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.files import expect_writable, write_json
from loadmaster.api.cli.interrupt import interruptible
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.words import summary
from loadmaster.api.units import parse_budget, parse_bytes, show_bytes, show_cost, show_share
from loadmaster.errors import InputError
from loadmaster.models.kinds import Plan, Problem, check_plan, read_plan, read_problem, write_plan
from loadmaster.planner.options import METHODS, PlanOptions, PlanProgress

INFEASIBLE = 3
INTERRUPTED = 130


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's commands."""
    plan = commands.add_parser("plan", help="find the best plan under a budget", description=_plan.__doc__)
    plan.add_argument("problem", metavar="PROBLEM.json")
    plan.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan here")
    plan.add_argument("--budget", metavar="SIZE", help="5GiB, 800MB, bytes, or 50%% of the unconstrained peak")
    add_options(plan)
    plan.add_argument("--server", metavar="URL", help="plan on a running service")
    plan.add_argument("--json", action="store_true", help="print the plan document instead of a summary")
    plan.set_defaults(run=_plan)

    check = commands.add_parser("check", help="verify a plan independently", description=_check.__doc__)
    check.add_argument("problem", metavar="PROBLEM.json")
    check.add_argument("plan", metavar="PLAN.json")
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    check.set_defaults(run=_check)


def add_options(command: argparse.ArgumentParser) -> None:
    """The flags that make up :class:`~loadmaster.planner.options.PlanOptions`."""
    defaults = PlanOptions()
    command.add_argument("--time-limit", type=float, default=defaults.time_limit_s, metavar="S", help="seconds (60)")
    command.add_argument("--gap", type=float, default=defaults.gap, metavar="G", help="stop at this gap (0.02)")
    command.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="of every solve (0)")
    command.add_argument("--solver", default=defaults.solver, metavar="NAME", help="auto, highs, cpsat, pulp:NAME")
    command.add_argument("--method", default=defaults.method, metavar="NAME", help=", ".join(METHODS))
    command.add_argument("--memory-limit", metavar="SIZE", help="address space of each solver process")


def options_of(arguments: argparse.Namespace, problem: Problem) -> PlanOptions:
    """Planning options from the flags; refuses a run without any budget.

    Raises:
        InputError: naming the flag.
    """
    budget = getattr(arguments, "budget", None)
    memory = arguments.memory_limit
    return PlanOptions(
        time_limit_s=arguments.time_limit,
        gap=arguments.gap,
        seed=arguments.seed,
        solver=arguments.solver,
        method=arguments.method,
        budget_bytes=None if budget is None else parse_budget(budget).resolve(problem),
        memory_limit_bytes=None if memory is None else parse_bytes(memory, "--memory-limit"),
    )


def report_progress(terminal: Terminal, progress: PlanProgress, unit: str) -> None:
    """One line of where the search is."""
    parts = [f"{progress.seconds:6.1f} s", progress.phase]
    if progress.objective is not None:
        parts.append(f"plan {show_cost(progress.objective, unit)}")
    if progress.bound is not None:
        parts.append(f"bound {show_cost(progress.bound, unit)}")
    if progress.gap is not None:
        parts.append(f"gap {show_share(progress.gap)}")
    if progress.message:
        parts.append(progress.message)
    terminal.progress("  ".join(parts))


def finish(plan: Plan, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Write and print a plan; returns the exit status that goes with it."""
    document = write_plan(plan)
    if arguments.output is not None:
        write_json(arguments.output, document, terminal)
    if arguments.json:
        if arguments.output != "-":
            terminal.json(document)
    elif arguments.output != "-":
        terminal.data(summary(plan))
    if plan.status == "infeasible":
        terminal.error(_relax(plan))
        return INFEASIBLE
    return INTERRUPTED if plan.stopped_by == "cancel" else 0


def _relax(plan: Plan) -> str:
    found = plan.infeasibility
    if found is None:
        return f"no plan fits {show_bytes(plan.budget_bytes)}"
    blockers = ", ".join(f"{b.tensor} {show_bytes(b.size_bytes)}" for b in found.blockers[:3])
    return (
        f"no plan fits {show_bytes(plan.budget_bytes)}: it needs {show_bytes(found.short_bytes)} more, at least "
        f"{found.minimum_budget_bytes} bytes. The largest blockers at {found.where} are {blockers}."
    )


def _plan(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Find the best plan under a byte budget, with a proof of how good it is."""
    expect_writable(arguments.output, "-o")
    problem = read_problem(arguments.problem)
    options = options_of(arguments, problem)
    if options.budget_bytes is None and problem.budget_bytes is None:
        raise InputError("--budget", None, "is missing, and the problem has none", "Give one, as in --budget 5GiB.")
    if arguments.server is not None:
        from loadmaster.api.cli.service import plan_on_server

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
    problem, plan = read_problem(arguments.problem), read_plan(arguments.plan)
    verdict = check_plan(problem, plan)
    claims = _false_claims(plan, verdict.objective)
    ok = verdict.ok and not claims
    if arguments.json:
        violations = [*verdict.violations, *claims]
        terminal.json({"problem_sha256": problem.sha256, **verdict.summary(), "ok": ok, "violations": violations})
        return 0 if ok else 1
    fit = f"{show_bytes(verdict.peak_bytes)} of {show_bytes(plan.budget_bytes)}"
    step = show_cost(verdict.objective, problem.unit)
    terminal.data(f"{'passed' if ok else 'FAILED'}: peak {fit} at {verdict.peak_at}, step {step}")
    for violation in (*verdict.violations, *claims):
        terminal.data(f"  {violation}")
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
