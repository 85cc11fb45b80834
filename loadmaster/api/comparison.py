"""Comparison of two plans in figures: what differs in what was asked, and what the second is against the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadmaster.models.kinds import Plan, kind_named
from loadmaster.models.units import show_cost, show_limit, show_share

__all__ = ["ComparisonRow", "asked_rows", "change", "checked_rows", "cost", "plan_rows"]

_UNITS = {"_bytes": "bytes", "_us": "us", "_uj": "uj"}
_LIMITS = ("limit", "budget_bytes")


@dataclass(frozen=True)
class ComparisonRow:
    """One figure of both plans, and what the second is against the first: ``change``, empty where there is nothing to
    say, and ``sort``, ``better`` or ``worse`` where that can be told."""

    name: str
    first: str
    second: str
    change: str = ""
    sort: str = ""


def plan_rows(first: Plan, second: Plan) -> list[ComparisonRow]:
    """All rows of the comparison of two plans of one kind."""
    limit = kind_named(first.kind).limit
    rows = asked_rows(first.options, second.options)
    if limit is not None:
        a, b = limit.of_plan(first), limit.of_plan(second)
        changed = change(a, b, judged=False)
        rows.append(ComparisonRow(limit.name, show_limit(a, limit.unit), show_limit(b, limit.unit), *changed))
    return [
        *rows,
        ComparisonRow("status", first.standing, second.standing),
        _cost_row("objective", first.objective, second.objective, first.unit),
        _cost_row("proved bound", first.bound, second.bound, first.unit, judged=False),
        ComparisonRow("gap", _share(first.gap), _share(second.gap)),
        ComparisonRow("method", first.method, second.method),
        ComparisonRow("searched for", _seconds(first), _seconds(second)),
        *checked_rows(first.check, second.check),
    ]


def asked_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[ComparisonRow]:
    """Rows of the options in which two plans differ; limits are among the figures."""
    given = [(name, first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])]
    return [ComparisonRow(name, _text(a), _text(b)) for name, a, b in given if a != b and name not in _LIMITS]


def checked_rows(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[ComparisonRow]:
    """Rows of the checker's figures that are numbers with a unit in their name: of each such figure, less is better."""
    rows = []
    for name in dict.fromkeys([*first, *second]):
        unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
        a, b = (value if isinstance(value := of.get(name), int | float) else None for of in (first, second))
        if unit is not None and (a or b):
            words = name.rpartition("_")[0].replace("_", " ")
            rows.append(_cost_row(words, a, b, unit))
    return rows


def change(first: float | None, second: float | None, *, judged: bool = True) -> tuple[str, str]:
    """Relative change from the first figure to the second, in words, and whether that is good."""
    if not first or second is None:
        return "", ""
    if first == second:
        return "the same", ""
    more = second / first - 1
    return f"{more:+.2%}".replace("%", " %"), ("better" if more < 0 else "worse") if judged else ""


def cost(value: float | None, unit: str | None) -> str:
    """Format an objective or a bound; empty where there is none."""
    return "" if value is None else show_cost(value, unit or "").strip()


def _cost_row(name: str, first: float | None, second: float | None, unit: str, *, judged: bool = True) -> ComparisonRow:
    return ComparisonRow(name, cost(first, unit), cost(second, unit), *change(first, second, judged=judged))


def _share(gap: float | None) -> str:
    return "" if gap is None else show_share(gap)


def _seconds(plan: Plan) -> str:
    return f"{sum(plan.seconds.values()):.1f} s"


def _text(value: object) -> str:
    return "" if value is None else str(value)
