"""Summary of a problem: its size and its needs, for people and as figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from loadmaster.models.kind import Problem
from loadmaster.models.kinds import kind_named
from loadmaster.models.references import resolve
from loadmaster.models.units import show_limit


@dataclass(frozen=True)
class Summary:
    """Text of ``print(problem.summary())``: rows of (what, in words and people's units), with the same as ``figures``:
    numbers in bytes and in the problem's unit, by names that say so."""

    title: str
    rows: tuple[tuple[str, str], ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max((len(what) for what, _ in self.rows), default=0)
        return "\n".join([self.title, *(f"  {what.ljust(width)}  {text}".rstrip() for what, text in self.rows)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(what)}</th><td>{escape(text)}</td></tr>" for what, text in self.rows)
        return f"<div><strong>{escape(self.title)}</strong><table>{rows}</table></div>"


def summarize(problem: Problem) -> Summary:
    """Summarize a problem: its sizes, what its kind says of it, and the limit that it states."""
    kind = kind_named(problem.kind)
    rows = [("sizes", ", ".join(f"{what} {count}" for what, count in problem.sizes.items()))]
    figures: dict[str, Any] = dict(problem.sizes)
    if kind.summary is not None:
        own: Summary = resolve(kind.summary)(problem)
        rows += own.rows
        figures |= own.figures
    stated = None if kind.limit is None else kind.limit.stated(problem)
    if kind.limit is not None and stated is not None:
        rows.append((kind.limit.name, show_limit(stated, kind.limit.unit)))
        figures[kind.limit.field] = stated
    title = problem.name if problem.title is None else f"{problem.name} ({problem.title})"
    return Summary(title, tuple(rows), figures)
