"""Policies that bring nothing early: the least recently used block leaves, or (Belady) the one used last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.policies.policy import Memory, Policy
from loadmaster.models.placement.problem import Operator, PlacementProblem


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
        """The position of the first use after the operator that runs now."""
        step, i = divmod(self._at, self._count)
        uses = self._uses[block]
        later = bisect_right(uses, i)
        here = later < len(uses)
        return (step if here else step + 1) * self._count + uses[later if here else 0]
