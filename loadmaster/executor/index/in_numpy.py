"""The index in numpy, for machines without the compiled core: sorted arrays, and a short one of late keys.

All structures are the same here. Arrays of a state are replaced whole, but for payloads and marks of deleted keys,
which are written in place, a word at a time: readers during a write see each key as it was before or after.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.executor.index.core_protocol import Facts, Flags, OverLimitError, Words
from loadmaster.models.index.configuration import Configuration

_LEAST_LATE_KEYS = 4096


@dataclass(frozen=True)
class _State:
    """Sorted arrays of an index: a key is in ``keys`` or ``late_keys``, once. Only those of ``keys`` may be dead."""

    keys: Words
    payloads: Words
    alive: Flags
    late_keys: Words
    late_payloads: Words

    @property
    def size_bytes(self) -> int:
        return 17 * len(self.keys) + 16 * len(self.late_keys)

    def folded(self) -> _State:
        """The state with late keys merged into the others, and without dead keys."""
        alive = self.alive
        keys, payloads = self.keys[alive], self.payloads[alive]
        return _state(*_merged(keys, payloads, self.late_keys, self.late_payloads))


class NumpyCore:
    """An index in numpy. See ``Core``."""

    def __init__(self, configuration: Configuration, keys: Words, payloads: Words, limit_bytes: int | None) -> None:
        """Make an index of ascending keys without duplicates; OverLimitError: they take more than ``limit_bytes``."""
        self._structure = configuration.structure
        self._limit_bytes = limit_bytes
        self._state = _state(keys.copy(), payloads.copy())
        self._expect_within_limit(self._state.size_bytes)
        self._keys = len(keys)
        self._changes = self._largest_change_keys = 0
        self._longest_change_us = 0.0
        self._operations = {"lookups": 0, "inserts": 0, "deletes": 0, "ranges": 0}

    def lookup(self, keys: Words) -> tuple[Words, Flags]:
        self._operations["lookups"] += len(keys)
        state = self._state
        at, found = _find(state.keys, keys)
        payloads = np.zeros(len(keys), np.uint64)
        if len(state.keys):
            found &= state.alive[at]
            payloads[found] = state.payloads[at[found]]
        if len(state.late_keys):
            at, late = _find(state.late_keys, keys)
            payloads[late] = state.late_payloads[at[late]]
            found |= late
        return payloads, found

    def find(self, key: int) -> int | None:
        payloads, found = self.lookup(np.array([key], np.uint64))
        return int(payloads[0]) if found[0] else None

    def insert(self, keys: Words, payloads: Words, *, upsert: bool) -> Flags:
        state = self._state
        order, first, unique = _unique(keys)
        # Of a key that comes several times in a batch, an insert keeps the first and an upsert the last.
        values = payloads[order[np.append(first[1:], True)[: len(first)] if upsert else first]]
        at, known = _find(state.keys, unique)
        living = known & state.alive[at] if len(state.keys) else known
        late_at, late = _find(state.late_keys, unique)
        there = living | late
        present = np.ones(len(keys), np.bool_)
        present[order[first]] = there
        dead, added = known & ~living, ~there & ~known

        # What needs memory comes before what changes anything.
        written = known if upsert else dead
        written_at, written_values, revived_at = at[written], values[written], at[dead]
        late_payloads = state.late_payloads.copy()
        if upsert:
            late_payloads[late_at[late]] = values[late]
        merged = _merged(state.late_keys, late_payloads, unique[added], values[added])
        changed = _State(state.keys, state.payloads, state.alive, *merged)
        if added.any():
            self._expect_within_limit(changed.size_bytes)

        state.payloads[written_at] = written_values
        state.alive[revived_at] = True
        self._state = changed
        self._keys += len(revived_at) + int(added.sum())
        self._operations["inserts"] += len(keys)
        if len(changed.late_keys) > max(_LEAST_LATE_KEYS, 4 * math.isqrt(len(changed.keys))):
            self._fold()
        return present

    def delete(self, keys: Words) -> Flags:
        state = self._state
        order, first, unique = _unique(keys)
        at, known = _find(state.keys, unique)
        living = known & state.alive[at] if len(state.keys) else known
        late_at, late = _find(state.late_keys, unique)
        found = np.zeros(len(keys), np.bool_)
        found[order[first]] = living | late
        kept = np.ones(len(state.late_keys), np.bool_)
        kept[late_at[late]] = False
        changed = _State(state.keys, state.payloads, state.alive, state.late_keys[kept], state.late_payloads[kept])
        gone = at[living]

        state.alive[gone] = False
        self._state = changed
        self._keys -= int(found.sum())
        self._operations["deletes"] += len(keys)
        if len(changed.keys) > 2 * self._keys + _LEAST_LATE_KEYS:
            self._fold()
        return found

    def range(self, first: int, last: int, most: int) -> tuple[Words, Words]:
        self._operations["ranges"] += 1
        state = self._state
        begin, end = _bounds(state.keys, first, last)
        # Enough of the living, and no more of a long tail than that takes.
        stop = begin
        while stop < end:
            stop = min(end, stop + 2 * most)
            if np.count_nonzero(state.alive[begin:stop]) >= most:
                break
        alive = state.alive[begin:stop].copy()
        late_begin, late_end = _bounds(state.late_keys, first, last)
        late_end = min(late_end, late_begin + most)
        keys, payloads = _merged(
            state.keys[begin:stop][alive][:most],
            state.payloads[begin:stop][alive][:most],
            state.late_keys[late_begin:late_end],
            state.late_payloads[late_begin:late_end],
        )
        return keys[:most], payloads[:most]

    def dump(self) -> tuple[Words, Words]:
        state = self._state.folded()
        return state.keys, state.payloads

    def reconfigure(self, configuration: Configuration, leaves: int) -> int | None:
        self._structure = configuration.structure
        return 0

    def facts(self) -> Facts:
        return Facts(
            keys=self._keys,
            size_bytes=self._state.size_bytes,
            leaves=1,
            fragments=0,
            depth=1,
            structural_changes=self._changes,
            longest_change_us=self._longest_change_us,
            largest_change_keys=self._largest_change_keys,
            huge_page_bytes=0,
            **self._operations,
            leaves_of={self._structure: 1},
            implementation="numpy",
        )

    def _fold(self) -> None:
        start = time.perf_counter()
        try:
            self._state = self._state.folded()
        except MemoryError:
            # All keys are there. Folding only makes the index quicker: a later batch tries again.
            return
        self._changes += 1
        self._largest_change_keys = max(self._largest_change_keys, self._keys)
        self._longest_change_us = max(self._longest_change_us, 1e6 * (time.perf_counter() - start))

    def _expect_within_limit(self, needed_bytes: int) -> None:
        if self._limit_bytes is not None and needed_bytes > self._limit_bytes:
            raise OverLimitError(needed_bytes)


def _state(keys: Words, payloads: Words) -> _State:
    none = np.zeros(0, np.uint64)
    return _State(keys, payloads, np.ones(len(keys), np.bool_), none, none)


def _find(ordered: Words, keys: Words) -> tuple[NDArray[np.intp], Flags]:
    """Return where keys are or would be, within the array, and which are there."""
    if not len(ordered):
        return np.zeros(len(keys), np.intp), np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
    return at, ordered[at] == keys


def _bounds(ordered: Words, first: int, last: int) -> tuple[int, int]:
    begin = np.searchsorted(ordered, np.uint64(first), "left")
    return int(begin), int(np.searchsorted(ordered, np.uint64(last), "right"))


def _unique(keys: Words) -> tuple[NDArray[np.intp], Flags, Words]:
    """A stable order, which of the ordered are the first of their key, and these keys."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.ones(len(keys), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return order, first, ordered[first]


def _merged(keys: Words, payloads: Words, more_keys: Words, more_payloads: Words) -> tuple[Words, Words]:
    if not len(more_keys):
        return keys, payloads
    at = np.searchsorted(keys, more_keys) + np.arange(len(more_keys))
    old = np.ones(len(keys) + len(more_keys), np.bool_)
    old[at] = False
    merged = np.empty(len(old), np.uint64), np.empty(len(old), np.uint64)
    for whole, a, b in zip(merged, (keys, payloads), (more_keys, more_payloads), strict=True):
        whole[old], whole[at] = a, b
    return merged
