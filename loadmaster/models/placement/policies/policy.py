"""Policies of the simulator: what they see and decide, which block leaves, and which come before they are missed.

A policy sees what a runtime sees: operators as they start, blocks as they arrive and leave. It never sees the trace
ahead of that, unless it says so (Belady does).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Protocol

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import Operator, PlacementProblem


class Memory(Protocol):
    """The device as the simulator shows it to a policy."""

    def is_away(self, block: int) -> bool:
        """Return whether what the block will be read for is in the tier, or on its way there."""


class Policy:
    """A policy that evicts what came first and prefetches nothing; others are made from it."""

    name = "fifo"

    def __init__(self) -> None:
        # In order of arrival; True stands for nothing.
        self._here: dict[int, bool] = {}

    def start(self, memory: Memory) -> None:
        """The simulation begins: nothing is on the device."""

    def starts(self, operator: Operator, position: int) -> None:
        """An operator of the trace (``position`` of all steps) is about to run: its blocks are looked up now."""

    def arrived(self, block: int) -> None:
        """A block has memory on the device from now on."""
        self._here[block] = True

    def used(self, block: int) -> None:
        """Called for each block of the operator that runs now."""

    def left(self, block: int) -> None:
        """A block has no memory any more, or none that it will keep."""
        del self._here[block]

    def victim(self, pinned: Collection[int]) -> int | None:
        """A block on the device to evict for an operator that waits, none of those ``pinned``; None: all are."""
        return next((block for block in self._here if block not in pinned), None)

    def early_victim(self, pinned: Collection[int]) -> int | None:
        """A block to evict for what is brought early; None: nothing should leave for that."""
        return None

    def wanted(self) -> Iterable[int]:
        """Blocks in the tier that should be on the device before they are missed, soonest first."""
        return ()


class Lru(Policy):
    """The victim is the block whose last use is longest ago."""

    name = "lru"

    def used(self, block: int) -> None:
        del self._here[block]
        self._here[block] = True


class Belady(Policy):
    """The victim is the block whose next use is farthest ahead: the fewest faults where all blocks have one size and
    cost the same. It reads the trace ahead, which no runtime can; and it counts faults, not time."""

    name = "belady"

    def __init__(self, problem: PlacementProblem) -> None:
        super().__init__()
        self._uses = [[i for i, _, _ in uses] for uses in Accesses(problem).uses]
        self._count = len(problem.operators)
        self._at = 0
        # Of blocks on the device, computed at each use.
        self._next: dict[int, int] = {}

    def start(self, memory: Memory) -> None:
        self._next = {}

    def starts(self, operator: Operator, position: int) -> None:
        self._at = position

    def arrived(self, block: int) -> None:
        super().arrived(block)
        self._next[block] = self._after(block)

    def used(self, block: int) -> None:
        self._next[block] = self._after(block)

    def left(self, block: int) -> None:
        super().left(block)
        del self._next[block]

    def victim(self, pinned: Collection[int]) -> int | None:
        # Those pinned are used now, their next use may be far ahead: they are passed over.
        free = (item for item in self._next.items() if item[0] not in pinned)
        return max(free, key=lambda item: item[1], default=(None, 0))[0]

    def _after(self, block: int) -> int:
        step, i = divmod(self._at, self._count)
        uses = self._uses[block]
        later = bisect_right(uses, i)
        here = later < len(uses)
        return (step if here else step + 1) * self._count + uses[later if here else 0]
