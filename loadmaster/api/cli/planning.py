"""What every command that plans shares: the flags, the line of progress, the answer and its exit status."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from loadmaster.api.cli.files import write_json
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.views import views_of
from loadmaster.api.units import parse_bytes, parse_limit, show_cost, show_share
from loadmaster.errors import InputError
from loadmaster.models.kind import Kind
from loadmaster.models.kinds import Plan, Problem, all_kinds, kind_named, write_plan
from loadmaster.planner import PlanOptions, PlanProgress, settled

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
    methods = "; ".join(f"{kind.name}: {', '.join(kind.methods)}" for kind in all_kinds().values())
    command.add_argument("--method", default=defaults.method, metavar="NAME", help=f"of {methods}")
    command.add_argument("--memory-limit", metavar="SIZE", help="address space of each solver process")


def add_limits(command: argparse.ArgumentParser) -> None:
    """The flags of every kind's limit: one of each name."""
    for flag, kinds in kinds_by_flag().items():
        limits = {kind.limit.help for kind in kinds if kind.limit is not None}
        names = ", ".join(kind.name for kind in kinds)
        command.add_argument(flag, dest=_limit_name(flag), metavar="LIMIT", help=f"{names}: {'; '.join(limits)}")


def kinds_by_flag() -> dict[str, list[Kind]]:
    """The kinds that have a limit, by the flag that sets it."""
    found: dict[str, list[Kind]] = {}
    for kind in all_kinds().values():
        if kind.limit is not None:
            found.setdefault(kind.limit.flag, []).append(kind)
    return found


def given_limit(arguments: argparse.Namespace, problem: Problem, flags: Mapping[str, str]) -> tuple[str, str] | None:
    """The flag and the text of the problem's limit, if it was given; ``flags``: limit's flag -> the flag looked for.

    Raises:
        InputError: another kind's limit was given.
    """
    limit = kind_named(problem.kind).limit
    found = None
    for own, flag in flags.items():
        text = getattr(arguments, _limit_name(flag), None)
        if text is None:
            continue
        if limit is None or limit.flag != own:
            raise InputError(flag, text, f"means nothing to {problem.kind}", "Leave it out.")
        found = flag, text
    return found


def _limit_name(flag: str) -> str:
    return f"limit_{flag.removeprefix('--')}"


def options_of(arguments: argparse.Namespace, problem: Problem) -> PlanOptions:
    """Planning options from the flags, as they stand for this problem.

    Raises:
        InputError: naming the flag; or there is no limit, neither by flag nor in the problem.
    """
    given = given_limit(arguments, problem, {flag: flag for flag in kinds_by_flag()})
    limit = None if given is None else parse_limit(given[1], problem, given[0])
    return settled(problem, planning_options(arguments, limit))


def planning_options(arguments: argparse.Namespace, limit: int | None) -> PlanOptions:
    """Planning options from the flags, with this limit.

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
        limit=limit,
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
        terminal.data(views_of(plan.kind).summary(plan))
    if plan.status == "infeasible":
        terminal.error(views_of(plan.kind).infeasible(plan))
        return INFEASIBLE
    return INTERRUPTED if plan.stopped_by == "cancel" else 0
