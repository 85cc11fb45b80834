"""What every command that plans shares: the flags, the line of progress, the answer and its exit status."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.files import write_json
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.views import VIEWS
from loadmaster.api.units import parse_budget, parse_bytes, show_cost, show_share
from loadmaster.models.kinds import Plan, Problem, write_plan
from loadmaster.planner.options import METHODS_OF, PlanOptions, PlanProgress

INFEASIBLE = 3
INTERRUPTED = 130


def add_options(command: argparse.ArgumentParser) -> None:
    """The flags that make up :class:`~loadmaster.planner.options.PlanOptions`."""
    defaults = PlanOptions()
    command.add_argument(
        "--time-limit", type=float, default=defaults.time_limit_s, metavar="S", help="seconds (%(default)g)"
    )
    command.add_argument("--gap", type=float, default=defaults.gap, metavar="G", help="stop at this gap (%(default)g)")
    command.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="of every solve (%(default)d)")
    command.add_argument("--solver", default=defaults.solver, metavar="NAME", help="auto, highs, cpsat, pulp:NAME")
    methods = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in METHODS_OF.items())
    command.add_argument("--method", default=defaults.method, metavar="NAME", help=f"of {methods}")
    command.add_argument("--memory-limit", metavar="SIZE", help="address space of each solver process")


def options_of(arguments: argparse.Namespace, problem: Problem) -> PlanOptions:
    """Planning options from the flags.

    Raises:
        InputError: naming the flag.
    """
    budget = getattr(arguments, "budget", None)
    return planning_options(arguments, None if budget is None else parse_budget(budget).resolve(problem))


def planning_options(arguments: argparse.Namespace, budget_bytes: int | None) -> PlanOptions:
    """Planning options from the flags, with this budget.

    Raises:
        InputError: naming the flag.
    """
    memory = arguments.memory_limit
    return PlanOptions(
        time_limit_s=arguments.time_limit,
        gap=arguments.gap,
        seed=arguments.seed,
        solver=arguments.solver,
        method=arguments.method,
        budget_bytes=budget_bytes,
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
        terminal.data(VIEWS[plan.kind].summary(plan))
    if plan.status == "infeasible":
        terminal.error(VIEWS[plan.kind].infeasible(plan))
        return INFEASIBLE
    return INTERRUPTED if plan.stopped_by == "cancel" else 0
