"""Pieces of ``docs/benchmarks.md``: sections, tables, numbers, and where a result was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.drawing import Result


def section(title: str, *parts: str, sources: Sequence[Result] = (), level: int = 3) -> str:
    """Write a section of the page: paragraphs, tables and plots, and where it was measured."""
    return "\n\n".join((f"{'#' * level} {title}", *parts, *([_measured(sources)] if sources else []))) + "\n"


def _measured(sources: Sequence[Result]) -> str:
    by_machine: dict[str, list[str]] = {}
    for source in sources:
        machine, versions = source["machine"], source["versions"]
        where = f"{machine['cores']} x {machine['processor']}, highspy {versions['highspy']}"
        if "gpu" in machine:
            where = f"{machine['gpu_count']} x {machine['gpu']}, torch {versions['torch']}"
        name = source["benchmark"]
        run = f"[{name}](../benchmarks/results/{name}.json), {source['date'].removesuffix(' UTC')}"
        by_machine.setdefault(where, []).append(run)
    return "\\\n".join(f"*{'; '.join(runs)}: {where}*" for where, runs in by_machine.items())


def plot(name: str, alt: str) -> str:
    """Show a plot."""
    return f"![{alt}](plots/{name}.svg)"


def table(header: str, rows: Iterable[Sequence[object]]) -> str:
    """Write a table in Markdown; a number that is not text yet has three digits."""
    width = header.count("|") + 1
    shown = (" | ".join(number(cell) if isinstance(cell, float) else str(cell) for cell in row) for row in rows)
    return "\n".join([f"| {header} |", f"|{' --- |' * width}", *(f"| {row} |" for row in shown)])


def number(value: float) -> str:
    """Format a number with three digits, or a thousands separator."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def percent(share: float, digits: int = 0) -> str:
    """Format a share in percent."""
    return f"{share:.{digits}%}".replace("%", " %")


def span(values: Iterable[float], form: str = ".2f") -> str:
    """Say the least and the most of some values; the form may be one of percent."""
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}".replace("%", " %")


def none_or(count: int) -> str:
    """Write a count of what should not be; "none" if there are none."""
    return str(count or "none")


def listed(words: Iterable[str]) -> str:
    """List words as in a sentence."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
