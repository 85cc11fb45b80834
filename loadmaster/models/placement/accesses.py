"""Accesses of a trace to its blocks: when each is used, when its contents still matter, and what must be copied.

Positions count operators from the start of a step and go on into the next one: n is operator 0 of the next step. A
*gap* (a, b) is between two uses of a block that follow each other, a in 0..n-1 and b in a+1..a+n. In a *live* gap the
operator at b reads what the block held after a: the block is on the device, or in a tier. In any other gap its contents
are dead: no memory is needed and nothing moves (the invalidation of [DeepUM23] section 5.2). What a live gap holds was
written at ``written``, a position at most a, in this step or in one before; a copy made after that is good until the
next write. A block that no operator writes has a good copy in the tier that it came from.

Example: operators 0 writes A, 1 reads A, 2 reads A. The gaps (0, 1) and (1, 2) are live and both hold what was written
at 0: one copy serves both. The gap (2, 3) is dead: operator 3 is operator 0, which writes A whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.solvers.program import IntArray


class Gap(NamedTuple):
    """A live gap of a block, between its uses at ``after`` and ``before``; ``written`` is None if nothing writes it."""

    block: int
    after: int
    before: int
    written: int | None

    @property
    def contents(self) -> tuple[int, int | None]:
        """The block and the write that it holds, as an operator of the step: gaps with equal contents share a copy."""
        return self.block, self.written

    @property
    def has_room(self) -> bool:
        """True if an operator runs in the gap: otherwise nothing is won by an absence."""
        return self.before - self.after > 1


@dataclass(frozen=True)
class Accesses:
    """The uses of every block of a problem."""

    problem: PlacementProblem

    @property
    def count(self) -> int:
        """Number of operators, n."""
        return len(self.problem.operators)

    @cached_property
    def uses(self) -> tuple[tuple[tuple[int, bool, bool], ...], ...]:
        """Uses of each block, as (operator, reads, writes) in order."""
        found: list[list[tuple[int, bool, bool]]] = [[] for _ in self.problem.blocks]
        for i, operator in enumerate(self.problem.operators):
            reads, writes = set(operator.reads), set(operator.writes)
            for block in operator.blocks:
                found[block].append((i, block in reads, block in writes))
        return tuple(tuple(rows) for rows in found)

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """All live gaps, by block and position; a ``written`` (0..n-1) beyond ``after`` is of the step before."""
        found = []
        for block, uses in enumerate(self.uses):
            writes = [i for i, _, wrote in uses if wrote]
            for (a, _, _), (b, reads, _) in zip(uses, (*uses[1:], *uses[:1]), strict=True):
                if reads:
                    written = max((w for w in writes if w <= a), default=writes[-1] if writes else None)
                    found.append(Gap(block, a, b if b > a else b + self.count, written))
        return tuple(found)

    @cached_property
    def by_block(self) -> tuple[tuple[Gap, ...], ...]:
        """The live gaps of each block."""
        found: list[list[Gap]] = [[] for _ in self.problem.blocks]
        for gap in self.gaps:
            found[gap.block].append(gap)
        return tuple(tuple(gaps) for gaps in found)

    @cached_property
    def needed_bytes(self) -> IntArray:
        """Bytes that must be on the device while each operator runs, wherever all else is: [n]."""
        sizes = [b.size_bytes for b in self.problem.blocks]
        return np.array(
            [o.workspace_bytes + sum(sizes[b] for b in o.blocks) for o in self.problem.operators], dtype=np.int64
        )

    @cached_property
    def live_bytes(self) -> IntArray:
        """Bytes on the device while each operator runs if nothing ever leaves, [n]: of the blocks that it uses, of all
        blocks in live gaps, and of workspace."""
        found = self.needed_bytes.copy()
        for gap in self.gaps:
            add_cyclic(found, gap.after + 1, gap.before, self.problem.blocks[gap.block].size_bytes)
        return found


def add_cyclic(values: IntArray, start: int, end: int, amount: int) -> None:
    """Add ``amount`` at positions ``start`` .. ``end`` - 1, at most n of them, counted around the step; in place."""
    count = len(values)
    if end <= start:
        return
    first, length = start % count, end - start
    if first + length <= count:
        values[first : first + length] += amount
    else:
        values[first:] += amount
        values[: first + length - count] += amount
