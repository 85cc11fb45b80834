"""Parts of every command that plans: the flags, the line of progress, the answer and its exit status."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from loadmaster.api.cli.files import write_json
from loadmaster.api.cli.lazy import suggest
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.views import views_of
from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan as EveryPlan
from loadmaster.models.kind import Limit
from loadmaster.models.kinds import Plan, Problem, all_kinds, kind_named, write_plan
from loadmaster.models.units import parse_bytes, parse_fraction, show_share
from loadmaster.planner import PlanOptions, PlanProgress, settled

INFEASIBLE = 3
INTERRUPTED = 130


def add_options(command: argparse.ArgumentParser, *, seed: bool = True) -> None:
    """Add the flags that make up :class:`~loadmaster.planner.options.PlanOptions`, without ``--seed`` where the command
    has one."""
    defaults = PlanOptions()
    command.add_argument(
        "--time-limit", type=float, default=defaults.time_limit_s, metavar="S", help="seconds (%(default)g)"
    )
    gap = show_share(defaults.gap).replace("%", "%%")
    command.add_argument("--gap", metavar="G", help=f"stop at this gap, as 1%% or 0.01 ({gap})")
    if seed:
        command.add_argument(
            "--seed", type=int, default=defaults.seed, metavar="N", help="of every solve (%(default)d)"
        )
    solver = command.add_argument(
        "--solver", default=defaults.solver, metavar="NAME", help="auto, highs, cpsat, pulp:NAME"
    )
    suggest(solver, ("auto", "highs", "cpsat", "pulp:"))
    methods = "; ".join(f"{kind.name}: {', '.join(kind.methods)}" for kind in all_kinds().values())
    method = command.add_argument("--method", default=defaults.method, metavar="NAME", help=f"of {methods}")
    suggest(method, dict.fromkeys(name for kind in all_kinds().values() for name in kind.methods))
    command.add_argument("--memory-limit", metavar="SIZE", help="address space of each solver process")


def add_prices(command: argparse.ArgumentParser) -> None:
    """Add the flag that asks for prices."""
    kinds = ", ".join(name for name, kind in all_kinds().items() if kind.limit is not None and kind.limit.prices)
    words = f"plan it with a little more of each resource too, and say what that gives; of {kinds}"
    command.add_argument("--prices", action="store_true", help=words)


def add_limits(command: argparse.ArgumentParser, *, several: bool = False, only: str | None = None) -> None:
    """Add a flag for the limit of every kind, or for several of it at once; kinds whose limits share a name share it.
    ``only``: the kind that the command is about; None: any."""
    for flag, limits in _limits_by_flag(several).items():
        same: dict[str, list[str]] = {}
        for kind, limit in limits.items():
            if only in (None, kind):
                same.setdefault(limit.help, []).append(kind)
        if not same:
            continue
        kinds = "; ".join(f"{', '.join(names)}: {words}" for words, names in same.items())
        metavar = "LIMIT,..." if several else "LIMIT"
        command.add_argument(flag, dest=f"limit {flag}", metavar=metavar, help=f"of {kinds}")


def given_limits(arguments: argparse.Namespace, problem: Problem, *, several: bool = False) -> list[int] | None:
    """The limits given for a problem, ascending; None where there are none. Raises InputError naming the flag: it is
    another kind's, or its value is not a limit."""
    found = None
    for flag, limits in _limits_by_flag(several).items():
        text: str | None = getattr(arguments, f"limit {flag}", None)
        if text is None:
            continue
        if problem.kind not in limits:
            raise InputError(flag, text, f"means nothing to {problem.kind}", "Leave it out.")
        parts = text.split(",") if several else [text]
        found = sorted({limits[problem.kind].value(part, problem, flag) for part in parts})
    return found


def _limits_by_flag(several: bool) -> dict[str, dict[str, Limit]]:
    """Limits by flag and kind: flag -> kind -> limit."""
    found: dict[str, dict[str, Limit]] = {}
    for kind in all_kinds().values():
        if kind.limit is not None:
            flag = f"--{kind.limit.plural}" if several else kind.limit.flag
            found.setdefault(flag, {})[kind.name] = kind.limit
    return found


def options_of(arguments: argparse.Namespace, problem: Problem) -> PlanOptions:
    """Planning options from the flags, as they stand for this problem. Raises InputError naming the flag, also where
    neither a flag nor the problem gives a limit."""
    limits = given_limits(arguments, problem)
    limit = kind_named(problem.kind).limit
    if limit is not None and limits is None and limit.stated(problem) is None:
        remedy = f"Give one, as in {limit.flag} 50%; loadmaster show PROBLEM.json says how much it needs."
        raise InputError(limit.flag, None, "is missing, and the problem states none", remedy)
    options = planning_options(arguments, None if limits is None else limits[0])
    with by_flag(limit):
        return settled(problem, options)


def planning_options(arguments: argparse.Namespace, limit: int | None) -> PlanOptions:
    """Planning options from the flags, with this limit. Raises InputError naming the flag."""
    memory = arguments.memory_limit
    with by_flag():
        return PlanOptions(
            time_limit_s=arguments.time_limit,
            gap=PlanOptions.gap if arguments.gap is None else parse_fraction(arguments.gap, "--gap"),
            seed=arguments.seed,
            solver=arguments.solver,
            method=arguments.method,
            limit=limit,
            prices=getattr(arguments, "prices", False),
            memory_limit_bytes=None if memory is None else parse_bytes(memory, "--memory-limit"),
        )


@contextmanager
def by_flag(limit: Limit | None = None, *, several: bool = False) -> Iterator[None]:
    """Let refusals of options, within the block, name the flags that they come from."""
    flags = {"options.time_limit_s": "--time-limit", "options.memory_limit_bytes": "--memory-limit"}
    if limit is not None:
        flag = f"--{limit.plural}" if several else limit.flag
        flags |= dict.fromkeys(("options.limit", f"options.{limit.field}"), flag)
    try:
        yield
    except InputError as error:
        if not error.field.startswith("options."):
            raise
        flag = flags.get(error.field, f"--{error.field.removeprefix('options.')}")
        raise InputError(flag, error.value, error.problem, error.remedy) from None


def report_progress(terminal: Terminal, progress: PlanProgress, unit: str) -> None:
    """Show where the search is, in one line."""
    terminal.progress(progress.line(unit))


def finish(plan: Plan, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Write and print a plan; returns the exit status that goes with it."""
    if arguments.output is not None:
        write_json(arguments.output, write_plan(plan), terminal)
    in_words = not arguments.json and arguments.output != "-"
    if in_words:
        terminal.data(views_of(plan.kind).summary(plan))
    elif arguments.output != "-":
        terminal.json(envelope(plan))
    if plan.status == "infeasible":
        if not in_words:  # the summary has said it
            terminal.error(views_of(plan.kind).infeasible(plan))
        return INFEASIBLE
    return INTERRUPTED if plan.stopped_by == "cancel" else 0


def envelope(plan: Plan) -> dict[str, Any]:
    """The document of a plan without its schedule: what every plan has, and the figures of its kind."""
    document = write_plan(plan)
    if plan.status == "infeasible":
        return document
    shared = {"schema", *(field.name for field in fields(EveryPlan))}
    return {name: value for name, value in document.items() if name in shared or not isinstance(value, dict | list)}
