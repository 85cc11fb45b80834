"""Evictions: which blocks should be away, between which operators, so that every operator has the memory that it needs.

An eviction is a gap, a tier, and the operators from ``first`` to ``last`` during which the block must be away. All
evictions together keep the budget at every operator.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.placement.accesses import Accesses, add_cyclic
from loadmaster.models.placement.timed import Timed
from loadmaster.planner.placement.links import Links
from loadmaster.solvers.program import BoolArray, FloatArray, IntArray

# An absence that is there is made longer, rather than that another block goes, where this many times the time of the
# copy is left for it.
_AMPLE = 4.0
# What an operator lacks is not made up of more blocks than this where larger ones are there: small ones are many.
_MOST_BLOCKS = 8


class TiersFullError(Exception):
    """An operator lacks memory, and no tier has room for what it could do without."""


class Evictions:
    """Evictions in the gaps of a problem that have room.

    Attributes:
        gaps: that have room.
        size, after, before: [gaps] bytes, and the uses around each.
        written: [gaps] position of the write of what it holds, at most ``after``; a step before where nobody writes.
        clean: [gaps] nobody writes the block.
        contents: [gaps] gaps of equal contents have equal numbers.
        store_us, load_us: [gaps, tiers] of one copy.
        tier: [gaps] where the block should be; -1: on the device. Equal for gaps of equal contents that are evicted.
        first, last: [gaps] between which it must be away, positions of the gap.
    """

    def __init__(self, accesses: Accesses, budget_bytes: int) -> None:
        self.accesses, self.budget_bytes = accesses, budget_bytes
        self.count = n = accesses.count
        self.gaps = [g for g in accesses.gaps if g.has_room]
        blocks, self.tiers = accesses.problem.blocks, accesses.problem.tiers
        self.index = {g: number for number, g in enumerate(self.gaps)}
        self.size = np.array([blocks[g.block].size_bytes for g in self.gaps], dtype=np.int64)
        self.after = np.array([g.after for g in self.gaps], dtype=np.int64)
        self.before = np.array([g.before for g in self.gaps], dtype=np.int64)
        self.clean = np.array([g.written is None for g in self.gaps], dtype=np.bool_)
        written = np.array([g.after - n if g.written is None else g.written for g in self.gaps], dtype=np.int64)
        self.written = np.where(written > self.after, written - n, written)
        numbers: dict[tuple[int, int | None], int] = {}
        self.contents = np.array([numbers.setdefault(g.contents, len(numbers)) for g in self.gaps], dtype=np.int64)
        shape = (len(self.gaps), len(self.tiers))
        self.store_us = np.array([[t.store_us(int(s)) for t in self.tiers] for s in self.size]).reshape(shape)
        self.load_us = np.array([[t.load_us(int(s)) for t in self.tiers] for s in self.size]).reshape(shape)
        self.tier = np.full(len(self.gaps), -1, dtype=np.int64)
        self.first = np.zeros(len(self.gaps), dtype=np.int64)
        self.last = np.zeros(len(self.gaps), dtype=np.int64)

    def copy(self) -> Evictions:
        """Return a copy over the same gaps, to be changed on its own."""
        twin = object.__new__(Evictions)
        twin.__dict__.update(self.__dict__)
        twin.tier, twin.first, twin.last = self.tier.copy(), self.first.copy(), self.last.copy()
        return twin

    def add(self, g: int, tier: int, first: int, last: int) -> None:
        """Evict a block in a gap, or for longer."""
        if self.tier[g] < 0:
            self.tier[g], self.first[g], self.last[g] = tier, first, last
        else:
            self.first[g], self.last[g] = min(self.first[g], first), max(self.last[g], last)

    def add_fluid(self, timed: Timed, values: FloatArray) -> None:
        """Evict what a relaxation has away: of a group, at each moment so many members as its share says."""
        c = timed.columns
        for e, group in enumerate(c.groups):
            shares = [[values[c.away[e, g, h]] for g in range(len(group.gaps))] for h in range(len(c.tiers))]
            tier = int(np.argmax([sum(float(s.sum()) for s in of_tier) for of_tier in shares]))
            for g, gap in enumerate(group.gaps):
                total = np.sum([of_tier[g] for of_tier in shares], axis=0)
                for r, member in enumerate(group.members):
                    away = np.flatnonzero(total * len(group.members) > r + 0.5)
                    if len(away):
                        n = self.index[member[g]]
                        ends = c.slots.moments[[gap.moments[away[0]], gap.moments[away[-1]]]]
                        first, last = (int(p) if p > self.after[n] else int(p) + self.count for p in ends)
                        self.add(n, tier, first, last)
        self._fit_the_tiers()

    def _fit_the_tiers(self) -> None:
        """Take evictions back that full tiers cannot hold: a relaxation does not count every copy."""
        for h, tier in enumerate(self.tiers):
            if tier.capacity_bytes is not None:
                held = np.zeros(self.count, dtype=np.int64)
                for g in np.flatnonzero(self.tier == h).tolist():
                    self._hold(held, g)
                    if held.max() > tier.capacity_bytes:
                        self._hold(held, g, -1)
                        self.tier[g] = -1

    def resident(self) -> IntArray:
        """Bytes [n] on the device if evicted blocks are away no longer than they must."""
        change = np.zeros(self.count + 1, dtype=np.int64)
        evicted = np.flatnonzero(self.tier >= 0)
        low = self.first[evicted] % self.count
        high = low + self.last[evicted] + 1 - self.first[evicted]
        np.subtract.at(change, low, self.size[evicted])
        np.add.at(change, np.minimum(high, self.count), self.size[evicted])
        around = high > self.count
        change[0] -= int(self.size[evicted][around].sum())
        np.add.at(change, high[around] - self.count, self.size[evicted][around])
        found: IntArray = self.accesses.live_bytes + np.cumsum(change[:-1])
        return found

    def keep_the_budget(self, links: Links, barred: BoolArray | None = None) -> None:
        """Give every operator what it lacks, the worst first, from the gaps with the most link time for copies,
        ``barred`` [gaps] last. Raises TiersFullError if nothing more can go."""
        resident, held = self.resident(), self._held()
        while True:
            i = int(resident.argmax())
            lack_bytes = int(resident[i]) - self.budget_bytes
            if lack_bytes <= 0:
                return
            g, position, tier = self._best(i, lack_bytes, links, held, barred)
            low, high = self._reach(g, position, tier, resident, links)
            if self.tier[g] >= 0:
                first, last = int(self.first[g]), int(self.last[g])
                low, high = (low, first - 1) if position < first else (last + 1, high)
            elif tier in held:
                self._hold(held[tier], g)
            self.add(g, tier, low, high)
            add_cyclic(resident, low, high + 1, -int(self.size[g]))

    def _held(self) -> dict[int, IntArray]:
        """Bytes [n] that copies take at most in each tier that may be full, while each operator runs."""
        held = {}
        for h, tier in enumerate(self.tiers):
            if tier.capacity_bytes is not None:
                held[h] = np.zeros(self.count, dtype=np.int64)
                for g in np.flatnonzero(self.tier == h).tolist():
                    self._hold(held[h], g)
        return held

    def _hold(self, held: IntArray, g: int, sign: int = 1) -> None:
        """Count a copy as long as it may be there; of a block that nobody writes, always."""
        start, end = int(self.written[g]) + 1, int(self.before[g])
        length = self.count if self.clean[g] else min(end - start, self.count)
        add_cyclic(held, start, start + length, sign * int(self.size[g]))

    def _best(
        self, i: int, lack_bytes: int, links: Links, held: dict[int, IntArray], barred: BoolArray | None
    ) -> tuple[int, int, int]:
        """Find the gap whose block should be away at operator i too, the position of i in it, and the tier."""
        position = np.where(self.after < i, i, i + self.count)
        evicted = self.tier >= 0
        open_ = (self.after < position) & (position < self.before)
        open_ &= ~(evicted & (self.first <= position) & (position <= self.last))
        g = np.flatnonzero(open_)
        large = self.size[g] >= lack_bytes / _MOST_BLOCKS
        g = g[large] if large.any() else g
        at, grown = position[g], evicted[g]
        of_contents = np.full(int(self.contents.max(initial=-1)) + 1, -1, dtype=np.int64)
        of_contents[self.contents[evicted]] = self.tier[evicted]
        bound = of_contents[self.contents[g]]
        best = (-np.inf, -1, 0)
        for h in range(len(self.tiers)):
            # How often the copy fits into the idle time that is left for it.
            store = links.idle_store_us(h, self.written[g] + 1, at) / self.store_us[g, h]
            store[self.clean[g] | (grown & (at > self.last[g]))] = np.inf
            load = links.idle_load_us(h, at + 1, self.before[g]) / self.load_us[g, h]
            load[grown & (at < self.first[g])] = np.inf
            score = np.minimum(store, load)
            score[grown & (score >= _AMPLE)] = np.inf
            if barred is not None:
                score[barred[g] & ~grown] -= 1e9
            score[(bound >= 0) & (bound != h)] = -np.inf
            capacity = self.tiers[h].capacity_bytes
            if capacity is not None:
                room = capacity - int(held[h].max())
                score[~grown & (self.size[g] > room)] = -np.inf
            if len(g) and score.max() > best[0]:
                k = int(score.argmax())
                best = (float(score[k]), k, h)
        if best[1] < 0:
            raise TiersFullError
        return int(g[best[1]]), int(at[best[1]]), best[2]

    def _reach(self, g: int, position: int, tier: int, resident: IntArray, links: Links) -> tuple[int, int]:
        """Find the first and last operator around a position that lack memory too, with the copies in time."""
        low = high = position
        while low - 1 > self.after[g] and resident[(low - 1) % self.count] > self.budget_bytes:
            low -= 1
        while high + 1 < self.before[g] and resident[(high + 1) % self.count] > self.budget_bytes:
            high += 1
        if low < position and not self.clean[g]:
            p = np.arange(low, position + 1)
            fits = links.idle_store_us(tier, int(self.written[g]) + 1, p) >= self.store_us[g, tier]
            low = int(p[fits.argmax()]) if fits.any() else position
        if high > position:
            p = np.arange(position, high + 1)
            fits = links.idle_load_us(tier, p + 1, int(self.before[g])) >= self.load_us[g, tier]
            high = int(p[fits][-1]) if fits.any() else position
        return low, high

    def relax(self, order: IntArray) -> None:
        """Take back what the budget does not need, gap by gap in that order: whole evictions, or their ends."""
        room = self.budget_bytes - self.resident()
        for g in order.tolist():
            size = int(self.size[g])
            p = np.arange(self.first[g], self.last[g] + 1) % self.count
            tight = np.flatnonzero(room[p] < size)
            if not len(tight):
                self.tier[g] = -1
                room[p] -= size
                continue
            low, high = int(tight[0]), int(tight[-1])
            room[p[:low]] -= size
            room[p[high + 1 :]] -= size
            self.first[g], self.last[g] = self.first[g] + low, self.first[g] + high
