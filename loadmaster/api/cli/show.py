"""``show``: a plan in words, as an offline report, as a picture, as a trace, or as a memory snapshot."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from loadmaster.api.cli.files import expect_writable, write_bytes, write_text
from loadmaster.api.cli.terminal import Terminal, table
from loadmaster.api.report.plan_page import plan_page
from loadmaster.api.report.snapshot import snapshot_bytes
from loadmaster.api.report.trace import chrome_trace
from loadmaster.api.report.view import FATES, MEANING, View, view
from loadmaster.api.report.words import summary
from loadmaster.api.units import show_bytes, show_cost
from loadmaster.errors import InputError
from loadmaster.models.documents import PROBLEM_SCHEMA
from loadmaster.models.kinds import Plan, Problem, read_plan, read_problem, write_plan

# Neighbours larger than this are not opened in the search for a plan's problem.
_LARGEST_NEIGHBOUR_BYTES = 64 << 20
_LARGEST_TENSORS = 10
_FILES = ("html", "png", "trace", "snapshot")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's command."""
    show = commands.add_parser("show", help="look at a plan", description=_show.__doc__)
    show.add_argument("plan", metavar="PLAN.json")
    show.add_argument("--problem", metavar="PROBLEM.json", help="default: the one beside the plan that it is for")
    show.add_argument("--html", metavar="REPORT.html", help="write a report that opens offline")
    show.add_argument("--png", metavar="PICTURE.png", help="write the memory timeline as a picture")
    show.add_argument("--trace", metavar="TRACE.json", help="write a Chrome trace for https://ui.perfetto.dev")
    show.add_argument(
        "--snapshot", metavar="PLANNED.pickle", help="write its memory for https://pytorch.org/memory_viz"
    )
    show.add_argument("--json", action="store_true", help="print the plan document")
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show what a plan does: in words, as an offline report, as a picture, as a trace, or as a memory snapshot."""
    for flag in _FILES:
        expect_writable(getattr(arguments, flag), f"--{flag}")
    plan = read_plan(arguments.plan)
    wanted = [f"--{flag}" for flag in _FILES if getattr(arguments, flag)]
    seen = _view(plan, arguments, wanted)
    if arguments.json:
        terminal.json(write_plan(plan))
    else:
        terminal.data(summary(plan))
        if seen is not None:
            terminal.data(_fates(seen))
    if seen is None:
        return 0
    if arguments.html:
        write_text(arguments.html, plan_page(seen), "--html")
        terminal.say(f"report: {arguments.html}")
    if arguments.png:
        from loadmaster.api.report.pictures import plan_png

        plan_png(arguments.png, seen)
        terminal.say(f"picture: {arguments.png}")
    if arguments.trace:
        write_text(arguments.trace, json.dumps(chrome_trace(seen)), "--trace")
        terminal.say(f"trace: {arguments.trace} (open it at https://ui.perfetto.dev)")
    if arguments.snapshot:
        write_bytes(arguments.snapshot, snapshot_bytes(seen), "--snapshot")
        terminal.say(f"snapshot: {arguments.snapshot} (open it at https://pytorch.org/memory_viz)")
    return 0


def _view(plan: Plan, arguments: argparse.Namespace, wanted: list[str]) -> View | None:
    """The plan with its problem, or None when no problem is at hand and nothing asked for needs one."""
    if plan.schedule is None:
        if wanted:
            remedy = "Show a plan that was found feasible."
            raise InputError(wanted[0], plan.status, "there is no schedule to draw", remedy)
        return None
    if arguments.problem is not None:
        return view(read_problem(arguments.problem), plan)
    found = _neighbour(Path(arguments.plan), plan)
    if found is not None:
        return view(found, plan)
    if wanted:
        remedy = "Give the problem with --problem PROBLEM.json."
        raise InputError(wanted[0], arguments.plan, "needs the problem, which is not beside the plan", remedy)
    return None


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


def _fates(seen: View) -> str:
    totals = seen.bytes_by_fate()
    lines = ["", "results"]
    lines += [f"  {fate:<10}  {show_bytes(totals[fate]):>9}  {MEANING[fate]}" for fate in FATES if totals[fate]]
    rows = [
        [
            str(t.forward),
            t.node or t.op,
            show_bytes(t.size_bytes),
            t.fate,
            show_cost(t.recompute_us, "us") if t.recompute_us else "",
        ]
        for t in seen.largest(_LARGEST_TENSORS)
    ]
    return "\n".join([*lines, "", table(rows, ["id", "made by", "size", "fate", "recompute"])])
