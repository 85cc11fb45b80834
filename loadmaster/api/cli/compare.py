"""``compare``: two plans side by side, each a file or the id of one on a service."""

from __future__ import annotations

import argparse

from loadmaster.api.cli.files import read_document
from loadmaster.api.cli.planning import envelope
from loadmaster.api.cli.server import add_service, connect, is_plan_id
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.columns import table
from loadmaster.api.comparison import plan_rows
from loadmaster.errors import InputError
from loadmaster.models.kinds import Plan, read_plan


def compare_arguments(compare: argparse.ArgumentParser) -> None:
    """Add the arguments of ``compare`` to its parser."""
    compare.description = _compare.__doc__
    compare.add_argument("first", metavar="PLAN.json|ID", help="a file, - for standard input, or a plan of a service")
    compare.add_argument("second", metavar="PLAN.json|ID", help="the same")
    add_service(compare)
    compare.add_argument("--json", action="store_true", help="print both plans without their schedules as JSON")
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Compare two plans of one kind: what was asked of each, what each comes to, and the difference."""
    if arguments.first == arguments.second:
        raise InputError("PLAN.json|ID", arguments.second, "is both plans", "Give two.")
    first, second = (_read(given, arguments) for given in (arguments.first, arguments.second))
    if first.kind != second.kind:
        raise InputError(
            "PLAN.json|ID", f"{first.kind} and {second.kind}", "are plans of two kinds", "Give two of one."
        )
    if arguments.json:
        terminal.json({"first": envelope(first), "second": envelope(second)})
        return 0
    if first.problem_sha256 != second.problem_sha256:
        terminal.say("they are plans of two problems")
    rows = [[row.name, row.first, row.second, f"{row.change} {row.sort}".strip()] for row in plan_rows(first, second)]
    terminal.data(
        table([["name", first.name, second.name, ""], *rows], ["", "first", "second", "second against first"])
    )
    return 0


def _read(given: str, arguments: argparse.Namespace) -> Plan:
    """A plan from a file, or from a service when it is done."""
    if not is_plan_id(given):
        return read_plan(read_document(given, "PLAN.json"))
    with connect(arguments) as client:
        return client.plan(given).result()
