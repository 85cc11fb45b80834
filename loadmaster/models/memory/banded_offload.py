"""The host link in the banded restriction: what is sent in the forward pass, what is fetched while slots compute.

The constraints (O1) to (O3), and what the columns mean, are in :mod:`loadmaster.models.memory.banded`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.grouped import Grouped
from loadmaster.models.memory.problem import ForwardOperator
from loadmaster.models.memory.reach import MIB, Row, term
from loadmaster.solvers.program import IntArray


class BandedOffload(Grouped):
    """Rows of a banded restriction that are about the links, given its columns.

    Attributes:
        offloads: whether results may travel at all.
        offload: [V], columns of o[i], -1 where there is none.
        fetch: [slots, V], columns of f[h,i].
    """

    offloads: bool
    offload: IntArray
    fetch: IntArray
    _spent: list[Row]

    def _beside(self, f: ForwardOperator) -> Row:
        """b[j] of (O1)."""
        return Row({int(self._backlog[f.id]): 1.0}) if self.offloads else Row()

    def add_sending(self) -> None:
        """(O1), (O2): the queue of results on their way to the host during the forward pass."""
        link = self.problem.host_link
        assert link is not None
        per_us = link.to_host_gbps * 1e3 / MIB
        self._backlog = self.builder.columns("backlog", self.count + 1)
        stalls = self.builder.columns("stall_us", self.count + 1, cost=1.0)
        leaves: dict[int, Row] = {}
        for i in np.flatnonzero(self.offload >= 0):
            column = int(self.offload[i])
            last_reader = max([int(i), *(j for j in self.problem.consumers[i])])
            leaves.setdefault(last_reader, Row()).also(column, self.sizes[i])
            self._le("offload", Row({column: 1.0}).plus(term(self.stored, 0, int(i))), 1.0)
            for h in np.flatnonzero(self.fetch[:, i] >= 0):
                self._le("fetch", term(self.fetch, int(h), int(i)).also(column, -1.0), 0.0)
        for j in range(1, self.count + 1):
            f = self.problem.forward[j - 1]
            worked = 0.0
            if f.encodes is None:
                saved = min(0.0, f.in_place.time_delta_us) if f.in_place is not None else 0.0
                worked = max(0.0, min(c.time_us for c in f.implementations) + saved)
            row = Row({int(self._backlog[j - 1]): 1.0, int(self._backlog[j]): -1.0, int(stalls[j]): -per_us})
            self._le("backlog", row.plus(leaves.get(j - 1, Row())), per_us * worked)
        # The backward pass starts when everything has left.
        self._le("drained", Row({int(self._backlog[self.count]): 1.0}), 0.0)
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
        stall = int(self.builder.columns("fetch_stall_us", 1, cost=1.0)[0])
        self._le("fetch_time", row.also(stall, -1.0), 0.0)
