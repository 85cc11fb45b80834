"""``show``: a problem in words, or a plan, of a file or of a service, in words and as each export that its kind has.

The problem of a plan in a file, and what it measured, are found next to it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from loadmaster.api.cli.files import expect_apart, expect_folder, read_document, write_json
from loadmaster.api.cli.planning import envelope
from loadmaster.api.cli.server import add_service, connect, is_plan_id
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.protocol import plan_path
from loadmaster.api.report.views import export_view, view_of, views_of
from loadmaster.errors import InputError
from loadmaster.models.documents import (
    LARGEST_MEASUREMENT_BYTES,
    MEASUREMENT_SCHEMA,
    PROBLEM_SCHEMA,
    Document,
    load_document,
)
from loadmaster.models.files import expect_writable, write_bytes
from loadmaster.models.kind import Export, Number
from loadmaster.models.kinds import (
    Plan,
    Problem,
    all_kinds,
    kind_named,
    read_measurement,
    read_plan,
    read_problem,
    write_plan,
)
from loadmaster.models.summary import summarize

T = TypeVar("T")

# Larger neighbours are not opened in the search for a plan's problem, and for what it measured.
_LARGEST_BYTES = {PROBLEM_SCHEMA: 64 << 20, MEASUREMENT_SCHEMA: LARGEST_MEASUREMENT_BYTES}


def show_arguments(show: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show`` to its parser."""
    show.description = _show.__doc__
    said = "a file, - for standard input, or a plan of a service"
    show.add_argument("document", metavar="PLAN.json|PROBLEM.json|ID", help=said)
    said = "of a plan of a service that is not done: the best so far"
    show.add_argument("--incumbent", action="store_true", help=said)
    show.add_argument("-o", "--output", metavar="PLAN.json", help="of a plan of a service: write it here")
    show.add_argument("--problem", metavar="PROBLEM.json", help="of the plan (default: the one next to it)")
    kinds = ", ".join(kind.name for kind in all_kinds().values() if kind.measurement is not None)
    said = f"{kinds}: what the plan measured when fit ran it (default: what is next to it)"
    show.add_argument("--measured", metavar="MEASURED.json", help=said)
    for name, of in exports_by_name().items():
        metavar = f"FILE{next(iter(of.values())).suffix}" if next(iter(of.values())).suffix else "FOLDER"
        words = {export.help for export in of.values()}
        said = words.pop() if len(words) == 1 else "; ".join(f"{kind}: {export.help}" for kind, export in of.items())
        which = "" if len(of) == len(all_kinds()) else f"{', '.join(of)}: "
        show.add_argument(f"--{name}", dest=f"export_{name}", metavar=metavar, help=f"{which}write {said}")
    for name, (number, exports) in export_numbers().items():
        said = f"of {', '.join(f'--{export}' for export in exports)}: {number.help} ({number.default})"
        show.add_argument(f"--{name}", dest=f"number_{name}", type=int, metavar="N", help=said)
    show.add_argument("--json", action="store_true", help="print the plan without its schedule as JSON")
    add_service(show)
    show.set_defaults(run=_show)


def exports_by_name() -> dict[str, dict[str, Export]]:
    """Exports of all kinds: name -> kind -> export."""
    found: dict[str, dict[str, Export]] = {}
    for kind in all_kinds().values():
        for export in kind.exports:
            found.setdefault(export.name, {})[kind.name] = export
    return found


def export_numbers() -> dict[str, tuple[Number, list[str]]]:
    """The numbers that exports take, and the names of those exports."""
    found: dict[str, tuple[Number, list[str]]] = {}
    for name, of in exports_by_name().items():
        for export in of.values():
            for number in export.numbers:
                found.setdefault(number.name, (number, []))[1].append(name)
    return found


def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show how much a problem needs, or what a plan does: in words, as a report, a picture, a trace, or for others."""
    asked = {name: path for name in exports_by_name() if (path := getattr(arguments, f"export_{name}")) is not None}
    if is_plan_id(arguments.document):
        return _show_plan(*_from_service(arguments, terminal), asked, arguments, terminal)
    _expect_no_service(arguments)
    document = read_document(arguments.document, "PLAN.json")
    if document.get("schema") == PROBLEM_SCHEMA:
        return _show_problem(read_problem(document), arguments, [f"--{name}" for name in asked], terminal)
    return _show_plan(read_plan(document), None, asked, arguments, terminal)


def _show_plan(
    plan: Plan, problem: Problem | None, asked: dict[str, str], arguments: argparse.Namespace, terminal: Terminal
) -> int:
    """Show a plan in words, and write the exports that were asked for. ``problem`` is None where it did not come with
    the plan, and is looked for; ``asked``: paths, by export."""
    inputs = {"the plan": arguments.document, "the problem": arguments.problem, "the measurement": arguments.measured}
    expect_apart({f"--{name}": path for name, path in asked.items()}, inputs)
    own = {export.name: export for export in kind_named(plan.kind).exports}
    for name, path in asked.items():
        if name not in own:
            raise InputError(f"--{name}", path, f"is of no {plan.kind} plan", "Leave it out.")
        (expect_writable if own[name].suffix else expect_folder)(path, f"--{name}")
    numbers = {name: _numbers_of(own[name], arguments) for name in asked}
    if problem is None or plan.status == "infeasible":
        measured = ["--measured"] if arguments.measured is not None else []
        problem = _problem(plan, arguments, [*(f"--{name}" for name in asked), *measured])
    views = views_of(plan.kind)
    seen = None if problem is None else view_of(problem, plan, _measured(plan, arguments))
    if arguments.json:
        terminal.json(envelope(plan))
    else:
        terminal.data(views.summary(plan))
        if seen is not None:
            terminal.data(views.details(seen))
        elif plan.status != "infeasible":
            terminal.say("its problem is not next to it: --problem PROBLEM.json adds what becomes of each part of it")
    for name, path in asked.items():
        _write(own[name], export_view(seen, own[name], numbers[name]), path, terminal)
    return 0


def _from_service(arguments: argparse.Namespace, terminal: Terminal) -> tuple[Plan, Problem]:
    """A plan of a service with its problem: the result, or the best so far."""
    if arguments.problem is not None:
        raise InputError("--problem", arguments.problem, "is for plans in files", "Leave it out: the service has it.")
    expect_writable(arguments.output, "-o")
    with connect(arguments) as client:
        handle = client.plan(arguments.document)
        if arguments.incumbent:
            plan = handle.incumbent()
        elif (state := handle.state()).final:
            plan = handle.result()
        else:
            remedy = "Give --incumbent for the best plan so far, or watch it to its end."
            raise InputError("ID", arguments.document, f"is {state.state}", remedy)
        problem = read_problem(client.get(plan_path(arguments.document, "/problem")))
    if arguments.output is not None:
        write_json(arguments.output, write_plan(plan), terminal)
    return plan, problem


def _expect_no_service(arguments: argparse.Namespace) -> None:
    """Refuse for a file what is for a plan of a service. Raises InputError naming the flag."""
    for flag, given in (("--incumbent", arguments.incumbent), ("-o", arguments.output)):
        if given:
            raise InputError(flag, arguments.document, "is for a plan of a service, and this is a file", "Give an ID.")


def _show_problem(problem: Problem, arguments: argparse.Namespace, wanted: list[str], terminal: Terminal) -> int:
    given = [flag for flag in ("--problem", "--measured") if getattr(arguments, flag[2:]) is not None]
    for flag in [*wanted, *given]:
        raise InputError(
            flag, arguments.document, "is for a plan, and this is a problem", "Plan it, and show the plan."
        )
    found = summarize(problem)
    if arguments.json:
        terminal.json({"name": problem.name, "kind": problem.kind, "problem_sha256": problem.sha256, **found.figures})
    else:
        terminal.data(str(found))
    return 0


def _numbers_of(export: Export, arguments: argparse.Namespace) -> dict[str, int]:
    """The numbers that an export takes: those given, else the usual ones."""
    found = {}
    for number in export.numbers:
        given = getattr(arguments, f"number_{number.name}")
        found[number.name] = number.checked(given, f"--{number.name}")
    return found


def _write(export: Export, written: Any, path: str, terminal: Terminal) -> None:
    field = f"--{export.name}"
    if isinstance(written, bytes):
        write_bytes(path, written, field)
        terminal.say(f"{export.name}: {path}" + (f" ({export.hint})" if export.hint else ""))
        return
    folder = Path(path)
    folder.mkdir(exist_ok=True)
    for name, content in written.items():
        write_bytes(str(folder / name), content, field)
        terminal.say(f"{export.name}: {folder / name}")


def _problem(plan: Plan, arguments: argparse.Namespace, wanted: list[str]) -> Problem | None:
    """The plan's problem, or None when it is not at hand and nothing asked for needs it."""
    if plan.status == "infeasible":
        if wanted:
            remedy = "Show a plan that was found feasible."
            raise InputError(wanted[0], plan.status, "there is no schedule to draw", remedy)
        return None
    if arguments.problem is not None:
        if arguments.problem == arguments.document == "-":
            raise InputError("--problem", "-", "cannot be standard input too", "Give it as a file.")
        given = read_problem(read_document(arguments.problem, "--problem"))
        if given.sha256 != plan.problem_sha256:
            remedy = "Give the one that plan read, or that fit wrote next to the plan."
            raise InputError("--problem", arguments.problem, "is not the problem that this plan is for", remedy)
        return given
    problems = _neighbours(Path(arguments.document), PROBLEM_SCHEMA, read_problem)
    found = next((problem for problem in problems if problem.sha256 == plan.problem_sha256), None)
    if found is None and wanted:
        remedy = "Give the one that plan read, or that fit wrote, with --problem PROBLEM.json."
        raise InputError(wanted[0], arguments.document, "needs the plan's problem, which is not next to it", remedy)
    return found


def _measured(plan: Plan, arguments: argparse.Namespace) -> Any:
    """Read what the plan measured: the file given, or else one next to the plan, if there is one."""
    if arguments.measured is None:
        if kind_named(plan.kind).measurement is None:
            return None
        return next(
            _neighbours(Path(arguments.document), MEASUREMENT_SCHEMA, lambda d: read_measurement(d, plan)), None
        )
    if arguments.measured == "-" and "-" in (arguments.document, arguments.problem):
        raise InputError("--measured", "-", "cannot be standard input too", "Give it as a file.")
    return read_measurement(read_document(arguments.measured, "--measured"), plan)


def _neighbours(path: Path, schema: str, read: Callable[[Document], T]) -> Iterator[T]:
    """Read the documents of one schema in the folder of ``path``, as far as ``read`` takes them."""
    largest_bytes = _LARGEST_BYTES[schema]
    for candidate in sorted(path.parent.glob("*.json")):
        # Somebody else's file, or one that cannot be used, is not what is looked for.
        with contextlib.suppress(InputError, OSError):
            if candidate == path or candidate.stat().st_size > largest_bytes:
                continue
            document = load_document(candidate)
            if document.get("schema") == schema:
                yield read(document)
