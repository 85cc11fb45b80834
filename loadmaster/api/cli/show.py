"""``show``: a plan in words, as a report, a picture, a trace, a memory snapshot, or for other runtimes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from loadmaster.api.cli.files import expect_folder, expect_writable, write_bytes, write_text
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.report.views import VIEWS
from loadmaster.errors import InputError
from loadmaster.models.documents import PROBLEM_SCHEMA
from loadmaster.models.kinds import Plan, Problem, read_plan, read_problem, write_plan

# Neighbours larger than this are not opened in the search for a plan's problem.
_LARGEST_NEIGHBOUR_BYTES = 64 << 20
# Flag -> the view that it writes.
_FILES = {"html": "page", "png": "picture", "trace": "trace", "snapshot": "snapshot"}
_FOLDERS = ("msccl", "mscclpp")
_VIEWS = _FILES | {flag: flag for flag in _FOLDERS}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's command."""
    show = commands.add_parser("show", help="look at a plan", description=_show.__doc__)
    show.add_argument("plan", metavar="PLAN.json")
    show.add_argument("--problem", metavar="PROBLEM.json", help="default: the one beside the plan that it is for")
    show.add_argument("--html", metavar="REPORT.html", help="write a report that opens offline")
    show.add_argument("--png", metavar="PICTURE.png", help="write its timeline as a picture")
    show.add_argument("--trace", metavar="TRACE.json", help="write a Chrome trace for https://ui.perfetto.dev")
    show.add_argument(
        "--snapshot", metavar="PLANNED.pickle", help="memory: write it for https://pytorch.org/memory_viz"
    )
    show.add_argument("--msccl", metavar="FOLDER", help="collective: write MSCCL XML, a file for each algorithm")
    show.add_argument("--mscclpp", metavar="FOLDER", help="collective: write MSCCL++ execution plans, one for each")
    show.add_argument(
        "--instances", type=int, default=1, metavar="N", help="of --msccl and --mscclpp: parallel copies (%(default)d)"
    )
    show.add_argument("--json", action="store_true", help="print the plan document")
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show what a plan does: in words, as a report, a picture, a trace, a memory snapshot, or for other runtimes."""
    for flag in _FILES:
        expect_writable(getattr(arguments, flag), f"--{flag}")
    for flag in _FOLDERS:
        expect_folder(getattr(arguments, flag), f"--{flag}")
    plan = read_plan(arguments.plan)
    views = VIEWS[plan.kind]
    for flag, name in _VIEWS.items():
        if getattr(arguments, flag) and getattr(views, name) is None:
            raise InputError(f"--{flag}", getattr(arguments, flag), f"is of no {plan.kind} plan", "Leave it out.")
    problem = _problem(plan, arguments, [f"--{flag}" for flag in _VIEWS if getattr(arguments, flag)])
    seen = None if problem is None else views.view(problem, plan)
    if arguments.json:
        terminal.json(write_plan(plan))
    else:
        terminal.data(views.summary(plan))
        if seen is not None:
            terminal.data(views.details(seen))
    if seen is None:
        return 0
    if arguments.html and views.page is not None:
        write_text(arguments.html, views.page(seen), "--html")
        terminal.say(f"report: {arguments.html}")
    if arguments.png and views.picture is not None:
        views.picture(arguments.png, seen)
        terminal.say(f"picture: {arguments.png}")
    if arguments.trace and views.trace is not None:
        write_text(arguments.trace, json.dumps(views.trace(seen)), "--trace")
        terminal.say(f"trace: {arguments.trace} (open it at https://ui.perfetto.dev)")
    if arguments.snapshot and views.snapshot is not None:
        write_bytes(arguments.snapshot, views.snapshot(seen), "--snapshot")
        terminal.say(f"snapshot: {arguments.snapshot} (open it at https://pytorch.org/memory_viz)")
    for flag in _FOLDERS:
        folder, exported = getattr(arguments, flag), getattr(views, flag)
        if folder and exported is not None:
            _export(Path(folder), exported(seen, arguments.instances), f"--{flag}", terminal)
    return 0


def _export(folder: Path, files: Mapping[str, str], field: str, terminal: Terminal) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        write_text(str(folder / name), text, field)
        terminal.say(f"{field.removeprefix('--')}: {folder / name}")


def _problem(plan: Plan, arguments: argparse.Namespace, wanted: list[str]) -> Problem | None:
    """The plan's problem, or None when it is not at hand and nothing asked for needs it."""
    if plan.status == "infeasible":
        if wanted:
            remedy = "Show a plan that was found feasible."
            raise InputError(wanted[0], plan.status, "there is no schedule to draw", remedy)
        return None
    if arguments.problem is not None:
        return read_problem(arguments.problem)
    found = _neighbour(Path(arguments.plan), plan)
    if found is None and wanted:
        remedy = "Give the problem with --problem PROBLEM.json."
        raise InputError(wanted[0], arguments.plan, "needs the problem, which is not beside the plan", remedy)
    return found


def _neighbour(path: Path, plan: Plan) -> Problem | None:
    """The problem document in the plan's folder that the plan was made for."""
    for candidate in sorted(path.parent.glob("*.json")):
        if candidate == path or candidate.stat().st_size > _LARGEST_NEIGHBOUR_BYTES:
            continue
        try:
            document = json.loads(candidate.read_bytes())
            if not isinstance(document, dict) or document.get("schema") != PROBLEM_SCHEMA:
                continue
            problem = read_problem(document)
        except (ValueError, OSError):
            # Somebody else's file, or one that cannot be used: not the problem that is looked for.
            continue
        if problem.sha256 == plan.problem_sha256:
            return problem
    return None
