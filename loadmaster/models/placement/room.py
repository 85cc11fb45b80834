r"""Room of device and tiers for all blocks, however long the copies take: a program with integers.

Sets: contents e, gaps g of e, tiers h and moments m as in :mod:`loadmaster.models.placement.timed`. A gap is away as
long as it must: from its first moment at which it is away to its last. B_e bytes of the block, V_m bytes on the device
at m if nothing is away, M the budget, C_h capacity.

Variables:
    in[g,h]      binary: the block is in h while it is away in g
    away[g,m]    binary: it is away at m, m in g
    left[e,m]    0..1: 1 from the first moment on at which the block is away with what it holds
    held[e,h,m]  0..1: 1 while a copy is in h

Find any point subject to
(R1)  what is on the device fits: V_m - sum of B_e away[g,m] <= M - `fits_the_device`
(R2)  what is away is in one tier: away[g,m] <= sum over h of in[g,h], sum over h of in[g,h] <= 1 - `lies_in_one_tier`
(R3)  what has left has left: left[e,m] >= away[g,m], left[e,m] >= left[e,m'], m' the moment before - `has_left`
(R4)  a copy is held from when the block first leaves to the last reader that it is loaded for: held[e,h,m] >=
      left[e,m] + in[g,h] - 1 for gaps g that end after m; where no operator writes the block, always: held[e,h,m] >=
      in[g,h] - `copies_are_held`
(R5)  copies fit their tier: sum of B_e held[e,h,m] <= C_h - `fits_the_tier`

Every plan that the checker passes gives a point: a copy that is stored later than the block first leaves does not
count, and one that is stored earlier is held for longer. A point gives moves: each store when the block first leaves,
each load when it need no longer be away. A tier is fullest at a moment, since copies begin to be held at moments alone.
A solver holds (R1) and (R5) to its tolerance: what its point has too much of, to the byte, is excluded by a row of
whole numbers, and it is asked again. So it is proved if no point exists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.plan import Absence, Moves, Store
from loadmaster.models.placement.slots import over_budget
from loadmaster.solvers.program import FloatArray, Program, ProgramBuilder


@dataclass(frozen=True)
class Contents:
    """Contents of a block from one write to the next; ``written`` is None where no operator writes it. Gaps are (first,
    end) of the positions at which it may be away; they count on from the write."""

    block: int
    size_bytes: int
    written: int | None
    gaps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Away:
    """A gap in which something is away, from position ``first`` to ``end`` - 1."""

    contents: int
    gap: int
    tier: int
    first: int
    end: int


class Columns:
    """The variables of one program.

    Attributes:
        moments: operators at which more would be on the device than the budget allows.
        lies_in: (contents, gap, tier) -> column.
        away: (contents, gap, moment) -> column.
        left: (contents, moment) -> column, in the order of time.
        held: (contents, tier, moment) -> column.
    """

    def __init__(self, b: ProgramBuilder, accesses: Accesses, budget_bytes: int) -> None:
        self.accesses, self.budget_bytes, self.count = accesses, budget_bytes, accesses.count
        self.tiers = accesses.problem.tiers
        self.contents = _contents(accesses)
        self.moments: list[int] = over_budget(accesses, budget_bytes).tolist()
        self.lies_in: dict[tuple[int, int, int], int] = {}
        self.away: dict[tuple[int, int, int], int] = {}
        self.left: dict[tuple[int, int], int] = {}
        self.held: dict[tuple[int, int, int], int] = {}
        for e, one in enumerate(self.contents):
            for g, (first, end) in enumerate(one.gaps):
                for h in range(len(self.tiers)):
                    self.lies_in[e, g, h] = int(b.columns(f"in[{e},{g},{h}]", (), upper=1.0, integer=True))
                for m in self._inside(first, end):
                    self.away[e, g, m] = int(b.columns(f"away[{e},{g},{m}]", (), upper=1.0, integer=True))
            for m in self.moments if one.written is None else self._inside(one.written + 1, one.gaps[-1][1]):
                self.left[e, m] = int(b.columns(f"left[{e},{m}]", (), upper=1.0))
                for h in range(len(self.tiers)):
                    self.held[e, h, m] = int(b.columns(f"held[{e},{h},{m}]", (), upper=1.0))

    def _inside(self, first: int, end: int) -> list[int]:
        """The moments at these positions, in the order of time."""
        positions = {first + (m - first) % self.count: m for m in self.moments}
        return [positions[p] for p in sorted(positions) if p < end]

    def position(self, e: int, m: int) -> int:
        """Position of a moment, counted from the write of contents."""
        written = self.contents[e].written
        start = 0 if written is None else written + 1
        return start + (m - start) % self.count


@dataclass(frozen=True)
class Room:
    """The program and its columns."""

    program: Program
    columns: Columns

    def moves(self, values: FloatArray) -> Moves:
        """The moves of a point."""
        c, count = self.columns, self.columns.count
        found = self._away(values)
        first_gone: dict[int, int] = {}
        for a in found:
            first_gone[a.contents] = min(a.first, first_gone.get(a.contents, a.first))
        stores = {
            Store(c.contents[a.contents].block, a.tier, first_gone[a.contents] % count)
            for a in found
            if c.contents[a.contents].written is not None
        }
        absences = [
            Absence(c.contents[a.contents].block, a.tier, a.first % count, a.first % count + a.end - a.first)
            for a in found
        ]
        return Moves(
            tuple(sorted(stores, key=lambda s: (s.at, s.block, s.tier))),
            tuple(sorted(absences, key=lambda a: (a.load_at % count, a.block))),
        )

    def without(self, values: FloatArray, name: str) -> Room:
        """Exclude the points that have too much, to the byte, for the reason for which this one has."""
        c, found, program = self.columns, self._away(values), self.program
        for m in c.moments:
            there = {(a.contents, a.gap) for a in found if (m - a.first) % c.count < a.end - a.first}
            away_bytes = sum(c.contents[e].size_bytes for e, _ in there)
            if int(c.accesses.live_bytes[m]) - away_bytes > c.budget_bytes:
                others = [column for (e, g, at), column in c.away.items() if at == m and (e, g) not in there]
                program = program.with_row(f"{name} device[{m}]", _ones(program, others), lower=1.0)
            for h, tier in enumerate(c.tiers):
                copies = {e for e in {a.contents for a in found} if self._is_held(found, e, h, m)}
                held_bytes = sum(c.contents[e].size_bytes for e in copies)
                if tier.capacity_bytes is not None and held_bytes > tier.capacity_bytes:
                    full = [c.held[e, h, m] for e in copies]
                    program = program.with_row(f"{name} tier[{h},{m}]", _ones(program, full), upper=len(full) - 1.0)
        return replace(self, program=program)

    def _away(self, values: FloatArray) -> list[_Away]:
        c, positions = self.columns, defaultdict[tuple[int, int], list[int]](list)
        for (e, g, m), column in c.away.items():
            if values[column] > 0.5:
                first = c.contents[e].gaps[g][0]
                positions[e, g].append(first + (m - first) % c.count)
        found = []
        for (e, g), at in positions.items():
            tier = max(range(len(c.tiers)), key=lambda h: float(values[c.lies_in[e, g, h]]))
            found.append(_Away(e, g, tier, min(at), max(at) + 1))
        return found

    def _is_held(self, found: Sequence[_Away], e: int, h: int, m: int) -> bool:
        c = self.columns
        one = c.contents[e]
        ends = [one.gaps[a.gap][1] for a in found if a.contents == e and a.tier == h]
        if one.written is None or not ends:
            return bool(ends)
        return min(a.first for a in found if a.contents == e) <= c.position(e, m) < max(ends)


def formulate(accesses: Accesses, budget_bytes: int) -> Room:
    """Write the program of a budget."""
    b = ProgramBuilder()
    c = Columns(b, accesses, budget_bytes)
    fits_the_device(b, c)
    lies_in_one_tier(b, c)
    has_left(b, c)
    copies_are_held(b, c)
    fits_the_tier(b, c)
    return Room(b.build(), c)


def size(accesses: Accesses, budget_bytes: int) -> int:
    """Columns that the program has, about: those of what is away and of what is held."""
    live, moments = len(accesses.gaps), len(over_budget(accesses, budget_bytes))
    return live * moments * (1 + len(accesses.problem.tiers))


def fits_the_device(b: ProgramBuilder, c: Columns) -> None:
    """Add (R1): what is on the device fits."""
    rows, scale = b.row_list("fits_the_device"), max(c.budget_bytes, 1)
    for m in c.moments:
        here = [(column, c.contents[e].size_bytes / scale) for (e, _, at), column in c.away.items() if at == m]
        lacking = (int(c.accesses.live_bytes[m]) - c.budget_bytes) / scale
        rows.add([column for column, _ in here], [size for _, size in here], lower=lacking)
    rows.done()


def lies_in_one_tier(b: ProgramBuilder, c: Columns) -> None:
    """Add (R2): what is away is in one tier."""
    rows = b.row_list("lies_in_one_tier")
    for e, one in enumerate(c.contents):
        for g in range(len(one.gaps)):
            tiers = [c.lies_in[e, g, h] for h in range(len(c.tiers))]
            rows.add(tiers, [1.0] * len(tiers), upper=1.0)
    for (e, g, _), column in c.away.items():
        tiers = [c.lies_in[e, g, h] for h in range(len(c.tiers))]
        rows.add([column, *tiers], [1.0, *[-1.0] * len(tiers)], upper=0.0)
    rows.done()


def has_left(b: ProgramBuilder, c: Columns) -> None:
    """Add (R3): what has left has left."""
    rows = b.row_list("has_left")
    for (e, _, m), column in c.away.items():
        rows.add([column, c.left[e, m]], [1.0, -1.0], upper=0.0)
    before: dict[int, int] = {}
    for (e, _), column in c.left.items():
        if e in before and c.contents[e].written is not None:
            rows.add([before[e], column], [1.0, -1.0], upper=0.0)
        before[e] = column
    rows.done()


def copies_are_held(b: ProgramBuilder, c: Columns) -> None:
    """Add (R4): a copy is held until its last reader."""
    rows = b.row_list("copies_are_held")
    for (e, h, m), held in c.held.items():
        one = c.contents[e]
        for g, (_, end) in enumerate(one.gaps):
            if one.written is None:
                rows.add([c.lies_in[e, g, h], held], [1.0, -1.0], upper=0.0)
            elif c.position(e, m) < end:
                rows.add([c.left[e, m], c.lies_in[e, g, h], held], [1.0, 1.0, -1.0], upper=1.0)
    rows.done()


def fits_the_tier(b: ProgramBuilder, c: Columns) -> None:
    """Add (R5): copies fit their tier."""
    rows = b.row_list("fits_the_tier")
    for h, tier in enumerate(c.tiers):
        if tier.capacity_bytes is None:
            continue
        scale = max(tier.capacity_bytes, 1)
        for m in c.moments:
            here = [
                (c.contents[e].size_bytes / scale, held) for (e, t, at), held in c.held.items() if (t, at) == (h, m)
            ]
            rows.add([held for _, held in here], [size for size, _ in here], upper=tier.capacity_bytes / scale)
    rows.done()


def _contents(accesses: Accesses) -> list[Contents]:
    found = defaultdict[tuple[int, int | None], list[tuple[int, int]]](list)
    for gap in accesses.gaps:
        late = accesses.count if gap.written is not None and gap.after < gap.written else 0
        if gap.has_room:
            found[gap.contents].append((gap.after + 1 + late, gap.before + late))
    sizes = [block.size_bytes for block in accesses.problem.blocks]
    return [Contents(block, sizes[block], written, tuple(sorted(gaps))) for (block, written), gaps in found.items()]


def _ones(program: Program, columns: Sequence[int]) -> FloatArray:
    row = np.zeros(program.column_count)
    row[list(columns)] = 1.0
    return row
