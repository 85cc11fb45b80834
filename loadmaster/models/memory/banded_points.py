"""From points of the banded restriction to decisions, and from schedules to points to start from.

What the columns mean is in :mod:`loadmaster.models.memory.banded`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.memory.bands import BoolArray
from loadmaster.models.memory.completion import Decisions, stored_at
from loadmaster.models.memory.grouped import Grouped
from loadmaster.models.memory.plan import Fetch, Schedule
from loadmaster.models.memory.reach import Row
from loadmaster.solvers.program import FloatArray, IntArray


class BandedPoints(Grouped):
    """What points of a banded restriction say, given its columns.

    Attributes:
        recompute, recompute_in_place, fetch, late: [slots, V], columns of r, q, f and g, -1 where there is none.
        recompute_choices: for a slot and a result, the columns of y and the implementations they stand for.
        offload: [V], columns of o.
    """

    recompute: IntArray
    recompute_in_place: IntArray
    recompute_choices: dict[tuple[int, int], tuple[IntArray, tuple[int, ...]]]
    offload: IntArray
    fetch: IntArray
    late: IntArray
    _kept: list[dict[int, Row]]
    _keep_columns: set[int]

    def decisions(self, values: FloatArray) -> Decisions:
        """What a point decides [columns]."""

        def on(cells: IntArray) -> BoolArray:
            chosen: BoolArray = (cells >= 0) & (values[np.maximum(cells, 0)] > 0.5)
            return chosen

        computes = [frozenset[int]()] * self.problem.stage_count
        kept = set(np.flatnonzero(on(self.stored[0])))
        computes[0] = frozenset(f.id for f in self.problem.forward if f.encodes is None or f.id in kept)
        fetches: dict[int, tuple[Fetch, ...]] = {}
        keep: dict[int, frozenset[int]] = {}
        arriving, late = on(self.fetch), on(self.late)
        for h, (a, _) in enumerate(self.groups):
            keep[a] = frozenset(i for i, row in self._kept[h].items() if row and values[list(row)].max() > 0.5)
            computes[a] = frozenset(map(int, np.flatnonzero(on(self.recompute[h]))))
            if arriving[h].any():
                before = self.groups[h - 1][0]
                fetches[a] = tuple(Fetch(int(i), a if late[h, i] else before) for i in np.flatnonzero(arriving[h]))
        return Decisions(
            computes=tuple(computes),
            backward=tuple(int(np.argmax(values[columns])) for columns in self.backward),
            offload=tuple(map(int, np.flatnonzero(on(self.offload)))),
            fetches=fetches,
            keep=keep,
        )

    def start(self, schedule: Schedule) -> tuple[IntArray, FloatArray]:
        """A MIP start from a schedule: columns and values of everything binary it decides.

        Recomputations outside the band or inside a slot are lost; the solver repairs or drops such a start.
        """
        point: dict[int, float] = {}

        def put(cells: IntArray, chosen: set[int]) -> None:
            for i in np.flatnonzero(cells >= 0):
                point[int(cells[i])] = float(int(i) in chosen)

        put(self.offload, set(schedule.offload))
        first = {c.forward: c for c in schedule.stages[0].computes}
        put(self.in_place, {i for i, c in first.items() if c.in_place})
        for i, (columns, numbers) in self.forward_choices.items():
            _choose(point, columns, numbers, first[i].implementation)
        for k, columns in enumerate(self.backward, start=1):
            _choose(point, columns, range(len(columns)), schedule.stages[k].implementation or 0)
        for h, (a, _) in enumerate(self.groups):
            made = {c.forward: c for c in schedule.stages[a].computes}
            put(self.stored[h], set(stored_at(schedule, a)) - {f.forward for f in schedule.stages[a].fetches})
            put(self.fetch[h], {f.forward for f in schedule.stages[a].fetches})
            put(self.late[h], {f.forward for f in schedule.stages[a].fetches if f.issued_at == a})
            put(self.recompute[h], set(made))
            stays = set(schedule.stages[a].keep) & self._read_later(schedule, h)
            point |= {c: float(i in stays) for i, row in self._kept[h].items() for c in row if c in self._keep_columns}
            put(self.recompute_in_place[h], {i for i, c in made.items() if c.in_place})
            for i in made:
                if (h, i) in self.recompute_choices:
                    _choose(point, *self.recompute_choices[h, i], made[i].implementation)
        columns_ = np.array(sorted(point), dtype=np.int64)
        return columns_, np.array([point[int(c)] for c in columns_])

    def brought_outside(self, first: int, last: int) -> IntArray:
        """Columns that say what slots other than first to last (not included) recompute and fetch."""
        outside = np.ones(len(self.groups), dtype=bool)
        outside[first:last] = False
        cells = np.concatenate([self.recompute[outside].ravel(), self.fetch[outside].ravel()])
        columns: IntArray = cells[cells >= 0]
        return columns

    def _read_later(self, schedule: Schedule, h: int) -> set[int]:
        """What a schedule reads in a slot after its first stage, or has in the next one."""
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
