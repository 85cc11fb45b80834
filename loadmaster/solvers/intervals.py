"""Intervals in addition to the rows of a program: stretches of time between columns, some of which must not overlap.

An interval starts at an integer column and lasts a fixed time. Where it has a presence column (0 or 1) it counts only
when that is 1. The intervals of one group follow one another: of any two that are present, one ends before the other
starts, or when it does. A solver that knows intervals (``cpsat``) searches over orders; rows alone would need a binary
for every pair. The types of the arrays of programs are here too.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


__all__ = ["NO_COLUMN", "IntervalCollector", "Intervals"]

# Stands in place of a column where an interval has none.
NO_COLUMN = -1


@dataclass(frozen=True, eq=False)
class Intervals:
    """All intervals of a program, and the groups that must not overlap. Build with :class:`IntervalCollector`.
    ``start`` [intervals]: columns. ``presence`` [intervals]: columns that are 0 or 1, or NO_COLUMN: always present.
    Group g has the intervals ``member[group_start[g] : group_start[g + 1]]``."""

    start: IntArray
    size: IntArray
    presence: IntArray
    group_start: IntArray
    member: IntArray

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.setflags(write=False)

    def _arrays(self) -> list[IntArray]:
        return [getattr(self, f.name) for f in fields(self)]

    @property
    def count(self) -> int:
        return len(self.start)

    @property
    def groups(self) -> list[IntArray]:
        """The intervals of each group."""
        return [self.member[first:last] for first, last in itertools.pairwise(self.group_start.tolist())]

    def violation(self, x: FloatArray) -> float:
        """The longest overlap of two present intervals of a group at a point [columns]."""
        start = x[self.start]
        present = (self.presence == NO_COLUMN) | (x[self.presence] > 0.5)
        worst = 0.0
        for group in self.groups:
            there = group[present[group]]
            order = there[np.lexsort((self.size[there], start[there]))]
            ends = np.maximum.accumulate(start[order] + self.size[order])
            if len(order) > 1:
                worst = max(worst, float((ends[:-1] - start[order][1:]).max()))
        return worst

    def update(self, digest: hashlib._Hash) -> None:
        """Add the intervals to the hash of a program."""
        for array in self._arrays():
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())

    def check(self, lower: FloatArray, upper: FloatArray, integer: BoolArray, label: Callable[[int], str]) -> None:
        """Refuse intervals over columns that cannot carry them, by an ``InputError``; ``label`` names a column."""
        for field, columns, least, most in (
            ("start", self.start, -np.inf, np.inf),
            ("presence", self.presence[self.presence != NO_COLUMN], 0.0, 1.0),
        ):
            if columns.size and not 0 <= columns.min() <= columns.max() < len(lower):
                raise InputError(f"intervals.{field}", int(columns.max()), "is no column", "Give columns in range.")
            wrong = columns[~integer[columns] | (lower[columns] < least) | (upper[columns] > most)]
            if wrong.size:
                raise InputError(
                    f"intervals.{field}",
                    label(int(wrong[0])),
                    "is no integer column in its range",
                    "Starts are integer, presences 0 or 1.",
                )
        if self.count and self.size.min() < 0:
            raise InputError("intervals.size", int(self.size.min()), "is negative", "Give sizes of at least 0.")
        if self.member.size and not 0 <= self.member.min() <= self.member.max() < self.count:
            raise InputError("intervals.member", int(self.member.max()), "is no interval", "Give intervals in range.")


class IntervalCollector:
    """Collects intervals and groups, then freezes them."""

    def __init__(self) -> None:
        self._parts: list[list[IntArray]] = []
        self._groups: list[IntArray] = []
        self._count = 0

    def add(self, start: ArrayLike, size: ArrayLike, *, presence: ArrayLike = NO_COLUMN) -> IntArray:
        """Add intervals and return their indices, flat; the arguments broadcast. See :class:`Intervals`."""
        whole = [np.asarray(part, dtype=np.int64) for part in (start, size, presence)]
        flat = [part.ravel() for part in np.broadcast_arrays(*whole)]
        self._parts.append(flat)
        self._count += len(flat[0])
        return np.arange(self._count - len(flat[0]), self._count, dtype=np.int64)

    def keep_apart(self, group: Sequence[int] | IntArray) -> None:
        """Require that the intervals of a group do not overlap."""
        self._groups.append(np.asarray(group, dtype=np.int64))

    def build(self) -> Intervals | None:
        """Freeze the intervals and groups; None if there are no intervals."""
        if not self._parts:
            return None
        start, size, presence = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        lengths = [len(group) for group in self._groups]
        member = np.concatenate([np.zeros(0, dtype=np.int64), *self._groups])
        return Intervals(start, size, presence, np.cumsum([0, *lengths], dtype=np.int64), member)
