"""The protocol of cores behind the class ``Index``: the compiled one and the one in numpy answer to these calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.index.configuration import Configuration

Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

GREATEST_KEY = (1 << 64) - 1


@dataclass(frozen=True)
class Facts:
    """Size, structure and counters of an index.

    Attributes:
        size_bytes: of its memory, keys and payloads included.
        leaves, fragments, depth: of its tree. Only fragmented logs have fragments.
        structural_changes: leaves grown, split or built again since it was made.
        longest_change_us: of these.
        largest_change_keys: how many keys the largest of these moved.
        huge_page_bytes: of ``size_bytes``, on huge pages (an estimate).
        lookups, inserts, deletes, ranges: operations since it was made, a batch counted by its keys.
        leaves_of: leaves by the word of their structure.
        implementation: "compiled" or "numpy".
    """

    keys: int
    size_bytes: int
    leaves: int
    fragments: int
    depth: int
    structural_changes: int
    longest_change_us: float
    largest_change_keys: int
    huge_page_bytes: int
    lookups: int
    inserts: int
    deletes: int
    ranges: int
    leaves_of: Mapping[str, int]
    implementation: str

    def after(self, earlier: Facts) -> Facts:
        """Add what was done and changed before the index was made again."""
        counters = ("structural_changes", "lookups", "inserts", "deletes", "ranges")
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(earlier, name) for name in counters}
        return replace(self, longest_change_us=max(self.longest_change_us, earlier.longest_change_us), **sums)


class OverLimitError(Exception):
    """The index would have outgrown its limit. ``needed_bytes`` is what it would have taken; 0: unknown."""

    def __init__(self, needed_bytes: int = 0) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes


class Core(Protocol):
    """Core of an index. Keys and payloads are contiguous arrays of uint64 here. One thread writes at a time, which
    callers see to; any number may read meanwhile. A call that raises ``MemoryError`` or ``OverLimitError`` leaves all
    keys and payloads as they were."""

    def lookup(self, keys: Words) -> tuple[Words, Flags]:
        """Payloads, 0 where there is no such key, and which keys were found."""

    def find(self, key: int) -> int | None:
        """The payload of one key."""

    def insert(self, keys: Words, payloads: Words, *, upsert: bool) -> Flags:
        """Insert pairs; return which keys were there before. Their payloads stay, or are replaced by an upsert."""

    def delete(self, keys: Words) -> Flags:
        """Delete keys; return which were there before."""

    def range(self, first: int, last: int, most: int) -> tuple[Words, Words]:
        """Up to ``most`` pairs with first <= key <= last, ascending."""

    def dump(self) -> tuple[Words, Words]:
        """All pairs, ascending. No thread may write meanwhile."""

    def reconfigure(self, configuration: Configuration, leaves: int) -> int | None:
        """Change up to ``leaves`` leaves and all new ones; return how many are left. None: make a new core."""

    def facts(self) -> Facts:
        """Size, structure and counters of the index."""
