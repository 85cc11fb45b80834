"""Points of the banded restriction: the decisions that they state, and points to start from by schedules.

What the columns mean is in :mod:`loadmaster.models.memory.banded`, which builds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.banded_columns import BandedColumns
from loadmaster.models.memory.bands import BoolArray
from loadmaster.models.memory.completion import Decisions, stored_at
from loadmaster.models.memory.forward_pass import BackwardColumns, ForwardColumns
from loadmaster.models.memory.plan import Fetch, Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.rows import Row
from loadmaster.solvers.program import FloatArray, IntArray, Program


@dataclass(frozen=True)
class Banded:
    """One banded restriction: its program, with rows in ``unit_bytes``, and what points of it say. ``groups``: first
    and last stage of each slot. ``kept``: for each slot, of what its first stage reads, whether that stage keeps it. A
    row of one binary column is e, or s; any other row is the sum of backward choices."""

    program: Program
    problem: MemoryProblem
    groups: list[tuple[int, int]]
    unit_bytes: int
    columns: BandedColumns
    backward: BackwardColumns
    forward: ForwardColumns
    kept: list[dict[int, Row]]

    def decisions(self, values: FloatArray) -> Decisions:
        """Decisions that a point [columns] states."""

        def on(cells: IntArray) -> BoolArray:
            chosen: BoolArray = (cells >= 0) & (values[np.maximum(cells, 0)] > 0.5)
            return chosen

        c = self.columns
        computes = [frozenset[int]()] * self.problem.stage_count
        kept = set(np.flatnonzero(on(c.stored[0])))
        computes[0] = frozenset(f.id for f in self.problem.forward if f.encodes is None or f.id in kept)
        fetches: dict[int, tuple[Fetch, ...]] = {}
        keep: dict[int, frozenset[int]] = {}
        arriving, late = on(c.fetch), on(c.late)
        for h, (a, _) in enumerate(self.groups):
            keep[a] = frozenset(i for i, row in self.kept[h].items() if row and values[list(row)].max() > 0.5)
            computes[a] = frozenset(map(int, np.flatnonzero(on(c.recompute[h]))))
            if arriving[h].any():
                before = self.groups[h - 1][0]
                fetches[a] = tuple(Fetch(int(i), a if late[h, i] else before) for i in np.flatnonzero(arriving[h]))
        return Decisions(
            computes=tuple(computes),
            backward=tuple(int(np.argmax(values[columns])) for columns in self.backward.choices),
            offload=tuple(map(int, np.flatnonzero(on(c.offload)))),
            fetches=fetches,
            keep=keep,
        )

    def start(self, schedule: Schedule) -> tuple[IntArray, FloatArray]:
        """A MIP start from a schedule: columns and values of everything binary it decides. Recomputations outside the
        band or inside a slot are lost; the solver repairs or drops such a start."""
        point: dict[int, float] = {}
        c = self.columns
        kept_columns = {block.start for block in self.program.column_blocks if block.name == "kept"}

        def put(cells: IntArray, chosen: set[int]) -> None:
            for i in np.flatnonzero(cells >= 0):
                point[int(cells[i])] = float(int(i) in chosen)

        put(c.offload, set(schedule.offload))
        first = {computed.forward: computed for computed in schedule.stages[0].computes}
        put(self.forward.in_place, {i for i, computed in first.items() if computed.in_place})
        for i, (columns, numbers) in self.forward.choices.items():
            _choose(point, columns, numbers, first[i].implementation)
        for k, columns in enumerate(self.backward.choices, start=1):
            _choose(point, columns, range(len(columns)), schedule.stages[k].implementation or 0)
        for h, (a, _) in enumerate(self.groups):
            made = {computed.forward: computed for computed in schedule.stages[a].computes}
            put(c.stored[h], set(stored_at(schedule, a)) - {f.forward for f in schedule.stages[a].fetches})
            put(c.fetch[h], {f.forward for f in schedule.stages[a].fetches})
            put(c.late[h], {f.forward for f in schedule.stages[a].fetches if f.issued_at == a})
            put(c.recompute[h], set(made))
            stays = set(schedule.stages[a].keep) & self._read_later(schedule, h)
            point |= {n: float(i in stays) for i, row in self.kept[h].items() for n in row if n in kept_columns}
            put(c.recompute_in_place[h], {i for i, computed in made.items() if computed.in_place})
            for i in made:
                if (h, i) in c.recompute_choices:
                    _choose(point, *c.recompute_choices[h, i], made[i].implementation)
        decided = np.array(sorted(point), dtype=np.int64)
        return decided, np.array([point[int(n)] for n in decided])

    def brought_outside(self, first: int, last: int) -> IntArray:
        """Columns that say what slots other than first to last (not included) recompute and fetch."""
        outside = np.ones(len(self.groups), dtype=bool)
        outside[first:last] = False
        cells = np.concatenate([self.columns.recompute[outside].ravel(), self.columns.fetch[outside].ravel()])
        columns: IntArray = cells[cells >= 0]
        return columns

    def _read_later(self, schedule: Schedule, h: int) -> set[int]:
        """Results that a schedule reads in a slot after its first stage, or has in the next one."""
        a, b = self.groups[h]
        read = set(stored_at(schedule, b + 1)) if b + 1 < self.problem.stage_count else set()
        for k in range(a + 1, b + 1):
            read.update(self.problem.backward[k - 1].implementations[schedule.stages[k].implementation or 0].needs)
        return read


def _choose(point: dict[int, float], columns: IntArray, numbers: Sequence[int], chosen: int) -> None:
    """Set one choice; an implementation without a column is replaced by the next that has one."""
    number = min((n for n in numbers if n >= chosen), default=numbers[-1])
    for column, n in zip(columns, numbers, strict=True):
        point[int(column)] = float(n == number)
