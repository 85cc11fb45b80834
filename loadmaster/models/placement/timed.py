r"""Program of timed moves, and its fluid relaxation: which block is away when, and which link moves it in which slot.

Sources: [Wu24] section 5.3 (stores and loads next to the compute), [DeepUM23] section 5 (clean and dead blocks); the
program is our own.

Sets: contents e, each what one block holds from a write until the next; gaps g of e, between two uses, in which the
block may be away (:mod:`loadmaster.models.placement.accesses`); tiers h; moments m, operators at which memory is
counted; slots j around the step, J of them (:mod:`loadmaster.models.placement.slots`). B_g bytes of the block, V_m
bytes on the device at m if nothing is away, M the budget, C_h capacity, d_j time of the operators in j, store_h and
load_h the time of a copy of the block on the link of h.

Variables:
    away[g,h,m]    binary: the block is in h alone while m runs, m in g
    stored[e,h,j]  0..1: the share that has been copied to h by the end of slot j after the write; none where no
                   operator writes the block: all of it is there
    coming[g,h,j]  0..1: the share that is still to be loaded at the start of slot j, before the gap ends
    stall[j]       how long operators wait in j, 0 where they may not

Minimize sum of d_j + stall[j] subject to
(P1)  what is on the device fits: V_m - sum of B_g away[g,h,m] <= M - `fits_the_budget`
(P2)  a block is in one tier: sum over h of away[g,h,m] <= 1 - `one_tier`
(P3)  only what is stored before m is away at m: away[g,h,m] <= stored[e,h,j], j the last slot before m -
      `stored_before_away`
(P4)  what is away at m is loaded after it: away[g,h,m] <= coming[g,h,j], j the first slot after m - `loaded_after_away`
(P5)  stores and loads only go on: stored[e,h,j] >= stored[e,h,j-1], coming[g,h,j] >= coming[g,h,j+1] - `only_onward`
(P6)  each direction of each link moves in a slot what its time allows: sum of store_h (stored[e,h,j] - stored[e,h,j-1])
      <= d_j + stall[j], and sum of load_h (coming[g,h,j] - coming[g,h,j+1]) <= d_j + stall[j] - `link_time`
(P7)  what is away in h fits there: sum of B_g away[g,h,m] <= C_h - `tier_capacity`

Every plan that the checker passes gives a point: its copies as shares of the slots that they take. A point is not a
plan: copies share a link here, and follow each other there; (P7) leaves out copies of what is on the device too. So the
value is a bound, with integers and without. Without, and over merged slots, it is the fluid relaxation. There, contents
whose copies have the same slots and moments are one, with the sum of their bytes: the average of their points, by
bytes, is a point of the same time. A copy's latency is left out of it, since it is not in proportion to bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.placement.accesses import Accesses, Gap
from loadmaster.models.placement.problem import Tier
from loadmaster.models.placement.slots import Slots
from loadmaster.solvers.program import IntArray, Program, ProgramBuilder

Term = tuple[ArrayLike, ArrayLike, ArrayLike]


@dataclass(frozen=True)
class GapSlots:
    """A gap in slots: its moments (rows), for each the last slot before it and the first one after, and its end."""

    moments: tuple[int, ...]
    stored_by: tuple[int, ...]
    loaded_from: tuple[int, ...]
    end: int


@dataclass
class Group:
    """Contents of equal slots and moments, with all their bytes.

    Attributes:
        start: the first slot in which a store may move; None: a good copy is in every tier.
        gaps: of each of the contents, in order.
        members: the gaps of each of the contents.
    """

    start: int | None
    gaps: tuple[GapSlots, ...]
    members: list[tuple[Gap, ...]] = field(default_factory=list)
    size_bytes: int = 0


def groups(accesses: Accesses, slots: Slots, *, together: bool) -> list[Group]:
    """The contents that may be away at some moment; ``together``, those of equal slots and moments make one group."""
    contents: dict[tuple[int, int | None], list[Gap]] = defaultdict(list)
    for gap in accesses.gaps:
        contents[gap.contents].append(gap)
    found: dict[object, Group] = {}
    for key, gaps in contents.items():
        written = key[1]
        kept, rows = [], []
        start = None
        for gap in gaps:
            # Positions and slots count from the write.
            origin = gap.after if written is None else written
            late = gap.after < origin
            after, before = (p + accesses.count * late for p in (gap.after, gap.before))
            inside = slots.moments_in(after + 1, before)
            if inside:
                moments, positions = zip(*inside, strict=True)
                kept.append(gap)
                rows.append(
                    GapSlots(
                        moments,
                        tuple(slots.before(p) - 1 for p in positions),
                        tuple(slots.after(p) for p in positions),
                        slots.before(before),
                    )
                )
        if not kept:
            continue
        if written is not None:
            start = slots.after(written)
        same: object = (start, tuple(rows)) if together else key
        group = found.setdefault(same, Group(start, tuple(rows)))
        group.members.append(tuple(kept))
        group.size_bytes += accesses.problem.blocks[key[0]].size_bytes
    return list(found.values())


class Columns:
    """The variables of one program. Latencies of copies count if it is exact.

    Attributes:
        away: (group, gap, tier) -> columns [moments of the gap].
        stored: (group, tier) -> columns [slots from the group's start on].
        coming: (group, gap, tier) -> (first slot, columns [slots from there to the end of the gap]).
        stall: columns [J].
    """

    def __init__(self, b: ProgramBuilder, accesses: Accesses, slots: Slots, *, exact: bool) -> None:
        self.accesses, self.slots, self.latency = accesses, slots, exact
        self.groups = groups(accesses, slots, together=not exact)
        self.tiers: Sequence[Tier] = accesses.problem.tiers
        self.away: dict[tuple[int, int, int], IntArray] = {}
        self.stored: dict[tuple[int, int], IntArray] = {}
        self.coming: dict[tuple[int, int, int], tuple[int, IntArray]] = {}
        upper = np.where(slots.may_stall, np.inf, 0.0)
        self.stall = b.columns("stall", slots.count, upper=upper, cost=1.0)
        b.offset += float(slots.length_us.sum())
        for e, group in enumerate(self.groups):
            for h in range(len(self.tiers)):
                if group.start is not None:
                    end = max(gap.stored_by[-1] for gap in group.gaps) + 1
                    # A moment right after the write has no slot in between: nothing can be away there.
                    self.stored[e, h] = b.columns(f"stored[{e},{h}]", max(end - group.start, 0), upper=1.0)
                for g, gap in enumerate(group.gaps):
                    shape = len(gap.moments)
                    self.away[e, g, h] = b.columns(f"away[{e},{g},{h}]", shape, upper=1.0, integer=exact)
                    first = gap.loaded_from[0]
                    self.coming[e, g, h] = first, b.columns(f"coming[{e},{g},{h}]", max(gap.end - first, 0), upper=1.0)

    def store_us(self, e: int, h: int) -> float:
        """The link time of all of a group's stores."""
        return self._us(self.groups[e], self.tiers[h].to_gbps, self.tiers[h].latency_us)

    def load_us(self, e: int, h: int) -> float:
        """The link time of all loads of a gap of a group."""
        return self._us(self.groups[e], self.tiers[h].from_gbps, self.tiers[h].latency_us)

    def _us(self, group: Group, gbps: float, latency_us: float) -> float:
        return group.size_bytes / (gbps * 1e3) + (latency_us * len(group.members) if self.latency else 0.0)


@dataclass(frozen=True)
class Timed:
    """The program and its columns."""

    program: Program
    columns: Columns


def formulate(accesses: Accesses, slots: Slots, budget_bytes: int, *, exact: bool) -> Timed:
    """The program over ``slots``: the fluid relaxation, or with integers, each contents apart, latencies counted."""
    b = ProgramBuilder()
    c = Columns(b, accesses, slots, exact=exact)
    fits_the_budget(b, c, budget_bytes)
    one_tier(b, c)
    stored_before_away(b, c)
    loaded_after_away(b, c)
    only_onward(b, c)
    link_time(b, c)
    tier_capacity(b, c)
    return Timed(b.build(), c)


def fits_the_budget(b: ProgramBuilder, c: Columns, budget_bytes: int) -> None:
    """Add (P1): what is on the device fits."""
    # In bytes, coefficients and right-hand sides would be too large for a solver's tolerances.
    scale = max(budget_bytes, 1)
    live = c.accesses.live_bytes[c.slots.moments]
    terms = [
        (list(c.groups[e].gaps[g].moments), columns, c.groups[e].size_bytes / scale)
        for (e, g, _), columns in c.away.items()
    ]
    b.rows("fits_the_budget", len(c.slots.moments), terms, lower=(live - budget_bytes) / scale)


def one_tier(b: ProgramBuilder, c: Columns) -> None:
    """Add (P2): a block is in one tier."""
    rows = b.row_list("one_tier")
    if len(c.tiers) > 1:
        for e, group in enumerate(c.groups):
            for g in range(len(group.gaps)):
                for column in zip(*(c.away[e, g, h].tolist() for h in range(len(c.tiers))), strict=True):
                    rows.add(column, [1.0] * len(column), upper=1.0)
    rows.done()


def stored_before_away(b: ProgramBuilder, c: Columns) -> None:
    """Add (P3): only what is stored before a moment is away at it."""
    rows = b.row_list("stored_before_away")
    for (e, g, h), columns in c.away.items():
        start = c.groups[e].start
        if start is None:
            continue
        for column, j in zip(columns.tolist(), c.groups[e].gaps[g].stored_by, strict=True):
            if j >= start:
                rows.add([column, int(c.stored[e, h][j - start])], [1.0, -1.0], upper=0.0)
            else:
                rows.add([column], [1.0], upper=0.0)
    rows.done()


def loaded_after_away(b: ProgramBuilder, c: Columns) -> None:
    """Add (P4): what is away at a moment is loaded after it."""
    rows = b.row_list("loaded_after_away")
    for (e, g, h), columns in c.away.items():
        first, coming = c.coming[e, g, h]
        for column, j in zip(columns.tolist(), c.groups[e].gaps[g].loaded_from, strict=True):
            if j - first < len(coming):
                rows.add([column, int(coming[j - first])], [1.0, -1.0], upper=0.0)
            else:
                rows.add([column], [1.0], upper=0.0)
    rows.done()


def only_onward(b: ProgramBuilder, c: Columns) -> None:
    """Add (P5): stores and loads only go on."""
    rows = b.row_list("only_onward")
    for columns in c.stored.values():
        for earlier, later in zip(columns[:-1].tolist(), columns[1:].tolist(), strict=True):
            rows.add([earlier, later], [1.0, -1.0], upper=0.0)
    for _, columns in c.coming.values():
        for earlier, later in zip(columns[:-1].tolist(), columns[1:].tolist(), strict=True):
            rows.add([earlier, later], [-1.0, 1.0], upper=0.0)
    rows.done()


def link_time(b: ProgramBuilder, c: Columns) -> None:
    """Add (P6): each direction of each link moves in a slot what its time allows."""
    for h in range(len(c.tiers)):
        stores = [(c.store_us(e, h), c.groups[e].start or 0, columns) for (e, t), columns in c.stored.items() if t == h]
        loads = [(-c.load_us(e, h), *found) for (e, _, t), found in c.coming.items() if t == h]
        for name, moves in (("store_time", stores), ("load_time", loads)):
            terms: list[Term] = [(np.arange(c.slots.count), c.stall, -1.0)]
            for us, first, columns in moves:
                slot = (first + np.arange(len(columns))) % c.slots.count
                # The share of slot j is stored[j] - stored[j-1]; of loads, coming[j] - coming[j+1].
                terms.append((slot, columns, abs(us)))
                if us > 0:
                    terms.append((slot[1:], columns[:-1], -us))
                else:
                    terms.append((slot[:-1], columns[1:], us))
            b.rows(f"link_time {name}[{h}]", c.slots.count, terms, upper=c.slots.length_us)


def tier_capacity(b: ProgramBuilder, c: Columns) -> None:
    """Add (P7): what is away in a tier fits there."""
    for h, tier in enumerate(c.tiers):
        if tier.capacity_bytes is not None:
            scale = max(tier.capacity_bytes, 1)
            terms = [
                (list(c.groups[e].gaps[g].moments), columns, c.groups[e].size_bytes / scale)
                for (e, g, t), columns in c.away.items()
                if t == h
            ]
            b.rows(f"tier_capacity[{h}]", len(c.slots.moments), terms, upper=tier.capacity_bytes / scale)
