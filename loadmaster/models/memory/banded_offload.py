"""The host link in the banded restriction: what is sent in the forward pass, what is fetched while slots compute.

The constraints (O1) to (O3), and what the columns mean, are in :mod:`loadmaster.models.memory.banded`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.forward_queue import ForwardQueue
from loadmaster.models.memory.reach import MIB, Row, term
from loadmaster.solvers.program import IntArray

# Up to this many cells of slots and results, a slot may fetch what it has no room for while the slot before computes.
LATE_CELLS = 1_500


class BandedOffload(ForwardQueue):
    """Columns and rows of a banded restriction that are about the links.

    Attributes:
        fetch: [slots, V], columns of f[h,i]; given.
        late: [slots, V], columns of g[h,i], -1 where there is none.
    """

    fetch: IntArray
    late: IntArray
    _spent: list[Row]

    def add_late_columns(self) -> None:
        """g[h,i]."""
        self.late = self._cells("late", (self.fetch >= 0) & (self.fetch.size <= LATE_CELLS))

    def on_its_way(self, h: int, i: int) -> Row:
        """f - g: travels while slot h-1 computes."""
        return term(self.fetch, h, i).plus(term(self.late, h, i), -1.0) if h < len(self.groups) else Row()

    def add_sending(self) -> None:
        """(O2): what is sent is not kept, only that is fetched, and the host has room for it."""
        link = self.problem.host_link
        assert link is not None
        for i in np.flatnonzero(self.offload >= 0):
            column = int(self.offload[i])
            self._le("offload", Row({column: 1.0}).plus(term(self.stored, 0, int(i))), 1.0)
            for h in np.flatnonzero(self.fetch[:, i] >= 0):
                self._le("fetch", term(self.fetch, int(h), int(i)).also(column, -1.0), 0.0)
        if link.capacity_bytes is not None:
            sent = Row({int(self.offload[i]): self.sizes[i] for i in np.flatnonzero(self.offload >= 0)})
            self._le("capacity", sent, link.capacity_bytes / MIB)

    def add_fetching(self, h: int) -> None:
        """(O3): what arrives at slot h travels while slot h-1 computes, or keeps slot h waiting."""
        link = self.problem.host_link
        assert link is not None
        row = Row()
        for i in map(int, np.flatnonzero(self.fetch[h] >= 0)):
            copy_us = link.from_host_us(int(self.problem.output_bytes[i]))
            row.plus(self.on_its_way(h, i), copy_us)
            if self.late[h, i] >= 0:
                self._cost(int(self.late[h, i]), copy_us)
                self._le("late", term(self.late, h, i).plus(term(self.fetch, h, i), -1.0), 0.0)
        if not row:
            return
        a, b = self.groups[h - 1]
        row.plus(self._spent[h - 1], -1.0)
        for k in range(a, b + 1):
            for column, choice in zip(self.backward[k - 1], self.problem.backward[k - 1].implementations, strict=True):
                row.also(int(column), -choice.time_us)
        stall = int(self.builder.columns("fetch_stall_us", 1)[0])
        self._cost(stall, 1.0)
        self._le("fetch_time", row.also(stall, -1.0), 0.0)
