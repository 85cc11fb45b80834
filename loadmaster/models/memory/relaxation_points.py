"""The columns of the boundary relaxation, and what its points say when they are carried out as a schedule.

What the columns mean is in :mod:`loadmaster.models.memory.relaxation`, which builds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.bands import BoolArray
from loadmaster.models.memory.choices import ByteScale
from loadmaster.models.memory.completion import Decisions
from loadmaster.models.memory.forward_pass import BackwardColumns
from loadmaster.models.memory.groups import missing
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.rows import Row, term
from loadmaster.solvers.program import FloatArray, IntArray, Program


@dataclass(frozen=True)
class Columns:
    """The columns of s, r and f [groups, V], and of o [V], -1 for none. ``recompute_workspace``: of recomputations with
    a choice, the workspace chosen, in units. ``spent``: for each group, the objective of its recomputations."""

    stored: IntArray
    recompute: IntArray
    offload: IntArray
    fetch: IntArray
    recompute_workspace: dict[tuple[int, int], Row]
    spent: list[Row]

    def available(self, g: int, i: int) -> Row:
        """Row of s + r + f of result i in group g."""
        return term(self.stored, g, i).plus(self.made_again(g, i))

    def made_again(self, g: int, i: int) -> Row:
        """Row of r + f of result i in group g."""
        return term(self.recompute, g, i).plus(term(self.fetch, g, i))

    def later(self, g: int, i: int) -> Row:
        """Row of s of result i at the end of group g; empty after the last group."""
        return term(self.stored, g + 1, i) if g + 1 < len(self.stored) else Row()


@dataclass(frozen=True)
class Relaxation:
    """One boundary relaxation: its program, and what points of it say. ``groups``: first and last stage of each."""

    program: Program
    problem: MemoryProblem
    groups: list[tuple[int, int]]
    scale: ByteScale
    columns: Columns
    backward: BackwardColumns

    def least_budget_bytes(self, bound: float) -> int:
        """Least budget of any plan, from a bound of the program that minimizes the budget."""
        return self.scale.least_bytes(bound)

    def decisions(self, values: FloatArray) -> Decisions:
        """Decisions that carry out a point [columns]; for problems without offload.

        What a group has stored is there throughout it. A recomputation runs in the first stage of the group that reads
        its result, or in the last one where only the next group wants it. By (R1) to (R3) that is all there is to
        compute. It need not fit the budget: the relaxation does not say in which stage of a group a result comes back.
        """

        def on(cells: IntArray) -> BoolArray:
            chosen: BoolArray = (cells >= 0) & (values[np.maximum(cells, 0)] > 0.5)
            return chosen

        stored = [frozenset(map(int, np.flatnonzero(row))) for row in on(self.columns.stored)]
        ways = tuple(int(np.argmax(values[columns])) for columns in self.backward.choices)
        computes = [frozenset(f.id for f in self.problem.forward if f.encodes is None or f.id in stored[0])]
        for (first, last), there, later in zip(self.groups, stored, [*stored[1:], frozenset()], strict=True):
            for k in range(first, last + 1):
                wanted = set(self.problem.backward[k - 1].implementations[ways[k - 1]].needs)
                made = missing(self.problem, wanted | later if k == last else wanted, there)
                computes.append(frozenset(made))
                there |= made
        return Decisions(tuple(computes), ways)
