"""Sections of ``docs/benchmarks.md``: setup, plot, table, what was won and what was not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.drawing import TITLES, Result


def section(title: str, setup: str, plot: str, alt: str, table: str, won: str, lost: str, *sources: Result) -> str:
    """Write a section of the page."""
    commands = "\n".join(f"{source['command']}    # {source['date']}" for source in sources)
    machine = sources[0]["machine"]
    where = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in sources[0]["versions"].items())
    return (
        f"## {title}\n\n{setup}\n\n![{alt}](plots/{plot}.svg)\n\n{table}\n{won} {lost}\n\n"
        f"```bash\n{commands}\n```\n\n{where}; {versions}\n"
    )


def table_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def names(rows: Iterable[Result]) -> str:
    """List models as in a sentence."""
    names = [TITLES[row["case"]] for row in rows]
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def number(value: float) -> str:
    """Format a number with three digits, or a thousands separator."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def percent(share: float) -> str:
    """Format a share in whole percent."""
    return f"{100 * share:.0f} %"


def signed(share: float) -> str:
    """Format a share in signed percent with two digits."""
    return f"{100 * share:.2f} %"
