"""The host link in the banded restriction: what is sent in the forward pass, what is fetched while slots compute.

The constraints (O1) to (O3), and what the columns mean, are in :mod:`loadmaster.models.memory.banded`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.forward_queue import ForwardQueue
from loadmaster.models.memory.reach import MIB, Row, term
from loadmaster.solvers.program import IntArray


class BandedOffload(ForwardQueue):
    """Rows of a banded restriction that are about the links, given its columns.

    Attributes:
        fetch: [slots, V], columns of f[h,i].
    """

    fetch: IntArray
    _spent: list[Row]

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
        """(O3): what arrives at slot h travels while slot h-1 computes."""
        link = self.problem.host_link
        assert link is not None
        row = Row()
        for i in np.flatnonzero(self.fetch[h] >= 0):
            row.also(int(self.fetch[h, i]), link.from_host_us(int(self.problem.output_bytes[i])))
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
