"""Writes ``docs/figures.md``: every figure under ``benchmarks/results/``, with what is needed to repeat it.

Run ``python benchmarks/tables.py`` after a benchmark; a test holds the page against the results. A result is shown as
it is: plain values first, then a table for every list of records and for every group of records with equal fields.
Fields of a record that hold records themselves are columns each; a median and its quartiles are one cell. What a result
names under ``not_shown`` (rows that another run goes on from) is left to the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "figures.md"
_LONGEST_LIST = 4
# Of samples: what a cell shows together.
_SPREAD = {"median_us", "q1_us", "q3_us"}
_HEAD = ("benchmark", "date", "command", "machine", "versions")
_INTRODUCTION = """# Figures

Everything that was measured, from `benchmarks/results/`, written by `python benchmarks/tables.py`. Each section names
the command that repeats it and the machine it ran on; [benchmarks/README.md](../benchmarks/README.md) says how to go on
from what is there. Seconds of solving are CPU seconds of one thread unless a name says otherwise.
"""


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """The page for these results, in the order of their names."""
    return "\n".join([_INTRODUCTION, *map(_section, sorted(results, key=lambda r: str(r["benchmark"])))])


def load() -> list[dict[str, Any]]:
    """All recorded results."""
    return [json.loads(path.read_text("utf-8")) for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))]


def _section(result: Mapping[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in result.get("machine", {}).items())
    versions = ", ".join(f"{name} {value}" for name, value in result.get("versions", {}).items())
    lines = [f"## {result['benchmark']}", "", f"`{result.get('command', 'no command recorded')}`", ""]
    lines += [f"{result.get('date', 'no date')}; {machine}; {versions}", ""]
    hidden = {*_HEAD, "not_shown", *result.get("not_shown", ())}
    body = {name: value for name, value in result.items() if name not in hidden}
    return "\n".join(lines) + "\n" + _body(body, level=3)


def _body(body: Mapping[str, Any], level: int) -> str:
    plain = {name: value for name, value in body.items() if not _nested(value)}
    parts = [_table(["figure", "value"], [[_words(k), _text(v)] for k, v in plain.items()])] if plain else []
    groups: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for name, value in body.items():
        if isinstance(value, Mapping) and not any(_nested(v) for v in value.values()):
            groups.setdefault(tuple(value), {})[name] = value
        elif _nested(value):
            parts.append(f"{'#' * level} {_words(name)}\n\n" + _deeper(value, level))
    for names, group in groups.items():
        header = ["", *(_words(n) for n in names)]
        parts.append(_table(header, [[_words(key), *(_text(row[n]) for n in names)] for key, row in group.items()]))
    return "\n".join(parts)


def _deeper(value: Any, level: int) -> str:
    if isinstance(value, Mapping):
        return _body(value, level + 1)
    rows = [dict(_columns(row)) for row in value]
    named = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in named if any(row.get(name) is not None for row in rows)]
    return _table([_words(n) for n in names], [[_text(row.get(n)) for n in names] for row in rows])


def _columns(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping) and value and all(isinstance(inner, Mapping) for inner in value.values()):
            yield from ((f"{name} {key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _nested(value: Any) -> bool:
    """Whether a value needs a table of its own."""
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, Mapping) for v in value))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list) and len(value) > _LONGEST_LIST:
        return f"{_text(value[0])} .. {_text(value[-1])} ({len(value)})"
    if isinstance(value, list):
        return ", ".join(_text(v) for v in value)
    if isinstance(value, Mapping) and set(value) == _SPREAD:
        return f"{_text(value['median_us'])} us ({_text(value['q1_us'])} to {_text(value['q3_us'])})"
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(k)} {_text(v)}" for k, v in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(render(load()), "utf-8")
    print(PAGE.relative_to(ROOT))
