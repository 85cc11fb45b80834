"""Names of modules along the time axis: which part of the model a stretch of the step belongs to.

A module is shown as its parts where there is room for the names of most of them; what has no room for its own stays
blank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

LETTER_WIDTH = 6.8  # pixels, of a label's letters on average
_GAP = 6  # pixels, between a label and the ends of its stretch
_ENOUGH = 0.6  # of a module's time: what its named parts must take, to be shown instead of it

Band = tuple[float, float, str]


class Timed(Protocol):
    """Something that ran, and the module that it is of."""

    @property
    def start_us(self) -> float: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def module(self) -> str | None: ...


def bands(events: Sequence[Timed], px: Callable[[float], float]) -> list[Band]:
    """Left, right and name of every stretch, from first to last; ``px`` turns milliseconds into pixels."""
    return list(_named(events, px, 1))


def _named(events: Sequence[Timed], px: Callable[[float], float], depth: int) -> Iterator[Band]:
    for path, run in groupby(events, key=lambda e: _prefix(e, depth)):
        if len(path) < depth:  # operators of no known module, or of the module itself rather than of a part of it
            continue
        parts = list(run)
        last = parts[-1]
        left, right = px(parts[0].start_us / 1e3), px((last.start_us + last.duration_us) / 1e3)
        deeper = list(_named(parts, px, depth + 1))
        if len(deeper) > 1 and sum(end - start for start, end, _ in deeper) >= _ENOUGH * (right - left):
            yield from deeper
        elif right - left >= LETTER_WIDTH * len(_name(path)) + _GAP:
            yield left, right, _name(path)


def _prefix(event: Timed, depth: int) -> tuple[str, ...]:
    return tuple(event.module.split(".")[:depth]) if event.module is not None else ()


def _name(path: tuple[str, ...]) -> str:
    """The last part of a path, or the last two where one of them is a number: ``layers.2``, and ``2.mlp`` in it."""
    return ".".join(path[-2:] if any(part.isdigit() for part in path[-2:]) else path[-1:])
