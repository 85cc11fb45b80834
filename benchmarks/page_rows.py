"""Rows of ``benchmarks/results/`` as the page and its plots take them: by method, by layer, by kind of request."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.drawing import Result

MODELS = {"wresnet-152-10": "WResNet-152-10", "rnn-4-8k": "RNN-4-8K", "rnn-10-8k": "RNN-10-8K"}
METHODS = {
    "auto": "exact",
    "recursive": "Tofu's recursion",
    "equal-chop": "one dimension each",
    "spartan": "Spartan",
    "all-row": "first dimensions",
    "no-reduction": "no sums over GPUs",
}
GRAPH_LAYERS = {"rgcn": "RGCN", "rgat": "RGAT", "hgt": "HGT"}
Cell = tuple[str, str, str]


def by_method(partition: Result) -> dict[str, dict[str, Result]]:
    """Rows of partition that compare methods, by model and method."""
    found: dict[str, dict[str, Result]] = {}
    for row in partition["rows"]:
        if row["table"] == "methods":
            found.setdefault(row["model"], {})[row["method"]] = row
    return found


def layer_rows(rows: Iterable[Result], system: str) -> dict[Cell, Result]:
    """Measured rows of a system, in the precision of the page, by layer, graph and pass."""
    return {_cell(row): row for row in rows if row["system"] == system and _is_shown(row)}


def fastest_rivals(rows: Iterable[Result]) -> dict[Cell, Result]:
    """Rows of the fastest system that is not ours, in the precision of the page, by layer, graph and pass."""
    rivals = [row for row in rows if not row["system"].startswith("loadmaster") and _is_shown(row)]
    return {_cell(row): row for row in sorted(rivals, key=lambda row: -float(row["ms"]))}


def _cell(row: Result) -> Cell:
    return row["model"], row["dataset"], row["mode"]


def _is_shown(row: Result) -> bool:
    return "ms" in row and row["precision"] == "high"


def requests(load: Result) -> dict[str, Result]:
    """Latencies of the service, by what was asked of it."""
    streams = load["event_streams"]
    return {
        f"submit a job, {load['submit']['asked_per_s']:.0f} a second": load["submit"],
        f"read a job, {load['read']['asked_per_s']:.0f} a second": load["read"],
        f"read a job while {streams['streams']} event streams open": streams["reads_meanwhile"],
        "a plan from the cache": load["cached_plan"],
        "cancel, before any plan": load["cancel_before_any_plan"],
        "cancel, with a plan": load["cancel_with_a_plan"],
    }
