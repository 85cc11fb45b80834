"""Parts that the summaries of several kinds share: rows of words, the proof, the method."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.envelope import Plan
from loadmaster.models.units import show_cost, show_share


def in_rows(head: str, rows: Sequence[tuple[str, str]]) -> str:
    """A line, and below it what is said of each name."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([head, *(f"  {name.ljust(width)}  {text}" for name, text in rows)])


def counted(count: int, what: str) -> str:
    """Format a count and its noun: ``1 host``, ``2 hosts``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def proof(plan: Plan) -> str:
    """The bound and the gap of a plan in words."""
    if plan.bound is None:
        return "none: no bound was computed"
    return f"at least {show_cost(plan.bound, plan.unit)}: gap {show_share(plan.gap)}"


def how(plan: Plan) -> list[tuple[str, str]]:
    """The method, what stopped it, the solver, and how long each part took."""
    name = plan.solver.get("name")
    solver = f", {name} {plan.solver.get('version', '')}".rstrip() if name else ""
    return [
        ("method", f"{plan.method}, stopped by {plan.stopped_by}{solver}"),
        ("seconds", ", ".join(f"{name} {value:.2f}" for name, value in plan.seconds.items())),
    ]
