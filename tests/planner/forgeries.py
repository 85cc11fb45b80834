"""Plan documents with one place changed: every number, text, list and optional field, in several ways each."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# What else a text may say where only a few words are allowed.
_WORDS: Mapping[str, Sequence[str]] = {
    "status": ("optimal", "feasible", "infeasible"),
    "stopped_by": ("gap", "time", "cancel", "crash", "proof", "method", "nothing"),
    "unit": ("us", "bytes", "uJ"),
    "kind": ("memory", "placement", "partition", "graph", "index", "collective", "training"),
}


class Forgery(NamedTuple):
    """A document that differs from an honest one.

    Attributes:
        pattern: the place, without the numbers of list entries.
        what: was done there.
    """

    pattern: str
    path: str
    what: str
    document: dict[str, Any]


def forgeries(document: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()) -> Iterator[Forgery]:
    """All of a document; fields that it lacks are taken from others."""
    for keys, value in _places(document):
        path = _path(keys)
        for what, changed in _changes(path, value):
            found = copy.deepcopy(dict(document))
            inside: Any = found
            for key in keys[:-1]:
                inside = inside[key]
            if changed is _GONE:
                del inside[keys[-1]]
            else:
                inside[keys[-1]] = changed
            yield Forgery(re.sub(r"\[\d+\]", "[]", path), path, what, found)
    lacking = {name: value for other in others for name, value in other.items() if name not in document}
    for name, value in lacking.items():
        yield Forgery(name, name, "added", {**document, name: value})
    for block in ("check", "seconds", "solver"):
        yield Forgery(
            f"{block}.made_up", f"{block}.made_up", "added", {**document, block: {**document[block], "made_up": 7}}
        )


_GONE = object()


def _places(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if keys:
        yield keys, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _places(part, (*keys, name))
    elif isinstance(value, list):
        for n, part in enumerate(value):
            yield from _places(part, (*keys, n))


def _path(keys: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _changes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not path.endswith("]"):
        yield "gone", _GONE
        yield "null", None
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int | float):
        numbers: list[Any] = [value * 1.001, value + 1, value - 1, value / 2, 2 * value, 0, -value, math.nan, math.inf]
        if isinstance(value, int):
            numbers = [n if not math.isfinite(n) else round(n) for n in numbers]
        yield from ((f"{value} became {n}", n) for n in dict.fromkeys(numbers) if n != value)
    elif isinstance(value, str):
        yield from ((f"became {word}", word) for word in (*_WORDS.get(path, ()), f"{value} x", "") if word != value)
    elif isinstance(value, list) and value:
        yield "last one dropped", value[:-1]
        yield "last one doubled", [*value, value[-1]]
        if value[0] != value[-1]:
            yield "ends swapped", [value[-1], *value[1:-1], value[0]]
