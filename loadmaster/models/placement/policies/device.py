"""The memory of the simulated device and the two directions of its link, in continuous time.

Memory is taken when a load starts, or when an operator is about to write a block whole. It is free again when a victim
without a good copy in the tier has been stored, and at once where there is one. Each direction moves one block at a
time. Loads that an operator waits for come first, but interrupt nothing.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Literal, NamedTuple

from loadmaster.models.placement.policies.policy import Policy
from loadmaster.models.placement.problem import PlacementProblem

What = Literal["run", "ran", "load", "loaded", "store", "stored", "make", "dropped", "gone", "dead"]


class Event(NamedTuple):
    """One line of the log; ``of`` is the operator (run, ran) or the block.

    A block takes memory from ``load`` or ``make`` on, and none from ``dropped`` (the tier has a good copy), ``gone``
    (it was stored) or ``dead`` (nobody reads what is in it) on.
    """

    at_us: float
    what: What
    of: int


class Place(IntEnum):
    """State of a block: on the device, in the tier, or on its way between them."""

    AWAY = 0
    COMING = 1
    HERE = 2
    GOING = 3


class Device:
    """Memory and links; every change goes to the log and, where it concerns the policy, there."""

    def __init__(self, problem: PlacementProblem, policy: Policy, budget_bytes: int, tier: int) -> None:
        self.sizes = [b.size_bytes for b in problem.blocks]
        self.load_us = [problem.tiers[tier].load_us(size) for size in self.sizes]
        self.store_us = [problem.tiers[tier].store_us(size) for size in self.sizes]
        self.policy, self.budget_bytes = policy, budget_bytes
        self.now_us = 0.0
        self.log: list[Event] = []
        self.place = [Place.AWAY] * len(self.sizes)
        # Whether the tier holds what is in the block.
        self.stored = [False] * len(self.sizes)
        self.used_bytes = self.workspace_bytes = 0
        # Memory that is free once all stores under way are over.
        self.going_bytes = 0
        self._loading: tuple[float, int] | None = None
        self._storing: tuple[float, int] | None = None
        self._spoilt = False  # what is being stored was written meanwhile, or is dead
        self._dead: set[int] = set()  # going, and not to be stored
        self._queue: deque[int] = deque()
        self._waited: deque[int] = deque()

    @property
    def free_bytes(self) -> int:
        """Bytes that no block and no operator takes."""
        return self.budget_bytes - self.used_bytes - self.workspace_bytes

    def is_away(self, block: int) -> bool:
        """Return whether what the block will be read for is in the tier, or on its way there."""
        place = self.place[block]
        return block not in self._dead if place is Place.GOING else place is Place.AWAY and self.stored[block]

    def note(self, what: What, of: int) -> None:
        """Add a line to the log."""
        self.log.append(Event(self.now_us, what, of))

    def await_load(self, block: int) -> None:
        """An operator waits for it: it comes before all that is only brought early."""
        self._waited.append(block)

    def make(self, block: int) -> None:
        """Take memory for a block that is written whole."""
        self.used_bytes += self.sizes[block]
        self.place[block] = Place.HERE
        self.note("make", block)
        self.policy.arrived(block)

    def written(self, block: int) -> None:
        """Mark the tier's copy of a block as out of date: an operator has written the block."""
        self.stored[block] = False
        if self._storing is not None and self._storing[1] == block:
            self._spoilt = True

    def keep(self, block: int) -> None:
        """Keep a victim that is not gone yet, because it is needed; its store goes on if it has started."""
        self.place[block] = Place.HERE
        self.going_bytes -= self.sizes[block]
        self._dead.discard(block)
        if block in self._queue:
            self._queue.remove(block)
        self.policy.arrived(block)

    def evict(self, block: int) -> None:
        """Evict a block: its memory is free at once, or when it has been stored."""
        if self.stored[block]:
            self._release(block, "dropped")
        else:
            self._let_go(block)
            if self._storing is None or self._storing[1] != block or self._spoilt:
                self._queue.append(block)
        self.policy.left(block)

    def die(self, block: int) -> None:
        """Free a block on the device whose contents nobody reads: neither its memory nor its copy is needed."""
        self.stored[block] = False
        if self._storing is not None and self._storing[1] == block:
            # The link still reads it.
            self._spoilt = True
            self._dead.add(block)
            self._let_go(block)
        else:
            self._release(block, "dead")
        self.policy.left(block)

    def start_copies(self) -> None:
        """Start what can start now on links that are idle."""
        if self._storing is None and self._queue:
            block = self._queue.popleft()
            self._storing, self._spoilt = (self.now_us + self.store_us[block], block), False
            self.note("store", block)
        if self._loading is None and self._waited and self.sizes[self._waited[0]] <= self.free_bytes:
            self.load(self._waited.popleft())

    @property
    def can_load(self) -> bool:
        """True if the link from the tier is idle and no operator waits for it."""
        return self._loading is None and not self._waited

    @property
    def can_store(self) -> bool:
        """True if the link to the tier is idle."""
        return self._storing is None and not self._queue

    @property
    def coming(self) -> int | None:
        """The block that is being loaded."""
        return None if self._loading is None else self._loading[1]

    @property
    def awaited_bytes(self) -> int:
        """Bytes that are waited for and have no memory yet."""
        return sum(self.sizes[block] for block in self._waited)

    def load(self, block: int) -> None:
        """Start to load a block, which must fit, over the link, which must be idle."""
        self.used_bytes += self.sizes[block]
        self.place[block] = Place.COMING
        self._loading = (self.now_us + self.load_us[block], block)
        self.note("load", block)
        self.policy.arrived(block)

    def next_end_us(self) -> float | None:
        """End of the next copy to end; None where none is under way."""
        ends = [copy[0] for copy in (self._loading, self._storing) if copy is not None]
        return min(ends, default=None)

    def end_copies(self) -> None:
        """End the copies that end now."""
        if self._storing is not None and self._storing[0] <= self.now_us:
            block = self._storing[1]
            self._storing = None
            self.note("stored", block)
            self.stored[block] = not self._spoilt
            if self.place[block] is Place.GOING and (block in self._dead or not self._spoilt):
                self.going_bytes -= self.sizes[block]
                self._release(block, "dead" if block in self._dead else "gone")
                self._dead.discard(block)
        if self._loading is not None and self._loading[0] <= self.now_us:
            block = self._loading[1]
            self._loading = None
            self.place[block] = Place.HERE
            self.note("loaded", block)

    def _let_go(self, block: int) -> None:
        self.place[block] = Place.GOING
        self.going_bytes += self.sizes[block]

    def _release(self, block: int, why: Literal["dropped", "gone", "dead"]) -> None:
        self.place[block] = Place.AWAY
        self.used_bytes -= self.sizes[block]
        self.note(why, block)
