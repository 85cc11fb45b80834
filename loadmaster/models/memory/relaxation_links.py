"""The host link in the boundary relaxation: time cannot undercut what it carries, nor memory what is on its way.

The constraints (R13) to (R15), and what the columns mean, are in :mod:`loadmaster.models.memory.relaxation`. The rule
that schedules follow is in :mod:`loadmaster.models.memory.links`; here bytes travel one by one. Where an operator takes
longer than the relaxation makes it, the difference is a wait (a stall) here, at the same cost.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.forward_queue import ForwardQueue
from loadmaster.models.memory.reach import MIB, Row, term
from loadmaster.solvers.program import IntArray

# Up to this many cells, of results and forward operators or groups, results are held whole while they travel.
WHOLE_CELLS = 1_500


class RelaxedLinks(ForwardQueue):
    """Rows of a relaxation that are about the links, given its columns.

    Attributes:
        fetch: [groups, V], columns of f[g,i].
        under_way: [groups, V], columns of z[g,i], -1 where there is none.
        spent: for each group, the objective of its recomputations.
    """

    fetch: IntArray
    under_way: IntArray
    spent: list[Row]

    def add_link_columns(self) -> None:
        """b[j], u[i,j], p[g], z[g,i]."""
        whole = self.count * max(self.count, len(self.groups)) <= WHOLE_CELLS
        self.add_queue_columns(whole=whole)
        self._prefetched = self.builder.columns("prefetched", len(self.groups))
        later = np.zeros(self.fetch.shape, dtype=bool)
        later[:-1] = self.fetch[1:] >= 0
        self.under_way = self._cells("under_way", later & whole)

    def _on_the_way(self, g: int, k: int) -> Row:
        """p[g] or what is under way whole, in the rows of stage k of the group: counted from the start of the stage in
        which it has been issued."""
        if not self.queues or k != self.groups[g][1]:
            return Row()
        if not self._whole:
            return Row({int(self._prefetched[g]): 1.0})
        return Row({int(self.under_way[g, i]): self.sizes[i] for i in np.flatnonzero(self.under_way[g] >= 0)})

    def add_sending(self) -> None:
        """(R13): the queue of the forward pass, and room on the host."""
        link = self.problem.host_link
        assert link is not None
        self.add_queue()
        sent = Row()
        for i in np.flatnonzero(self.offload >= 0):
            sent.also(int(self.offload[i]), self.sizes[i])
            if self.stored[0, i] >= 0:
                self._le("offload", Row({int(self.offload[i]): 1.0, int(self.stored[0, i]): 1.0}), 1.0)
            for g in np.flatnonzero(self.fetch[:, i] >= 0):
                self._le("fetch", Row({int(self.fetch[g, i]): 1.0, int(self.offload[i]): -1.0}), 0.0)
        if link.capacity_bytes is not None:
            self._le("capacity", sent, link.capacity_bytes / MIB)

    def add_fetching(self) -> None:
        """(R14), (R15): what is fetched in a group has been on its way before, or takes the group's time."""
        link = self.problem.host_link
        assert link is not None
        per_us = link.from_host_gbps * 1e3 / MIB
        before = Row()
        for g, (a, b) in enumerate(self.groups):
            stall = int(self.builder.columns("fetch_stall_us", 1)[0])
            self._cost(stall, 1.0)
            waited = Row({stall: 1.0})
            last, others = self._backward_us(b), Row()
            for k in range(a, b):
                others.plus(self._backward_us(k))
            arriving = Row({int(self.fetch[g, i]): self.sizes[i] for i in np.flatnonzero(self.fetch[g] >= 0)})
            row = Row(arriving).plus(before, -1.0).plus(waited, -per_us)
            if a < b:
                row.plus(others, -per_us).plus(self.spent[g], -per_us)
            self._le("arrival", row, 0.0)
            after = Row({int(self._prefetched[g]): 1.0})
            row = Row(arriving).plus(after).plus(before, -1.0).plus(waited, -per_us)
            row.plus(others, -per_us).plus(last, -per_us).plus(self.spent[g], -per_us)
            self._le("prefetch", row, 0.0)
            before = after
            if self._whole:
                self.add_whole_fetches(g, waited)

    def add_whole_fetches(self, g: int, waited: Row) -> None:
        """(R16): what is under way stays so until it arrives; what was not, a stage that fetches it waits for."""
        link = self.problem.host_link
        assert link is not None
        a, b = self.groups[g]
        prefetched = Row({int(self._prefetched[g]): 1.0})
        self._le("under_way", prefetched.plus(self._on_the_way(g, b), -1.0), 0.0)
        for i in map(int, np.flatnonzero(self.under_way[g] >= 0)):
            row = term(self.under_way, g, i).plus(term(self.fetch, g + 1, i), -1.0)
            self._le("under_way", row.plus(term(self.under_way, g + 1, i), -1.0), 0.0)
        if a < b:
            return
        late = Row()
        for i in map(int, np.flatnonzero(self.fetch[g] >= 0)):
            column = self._presence("late")
            row = term(self.fetch, g, i).also(column, -1.0)
            self._le("late", row.plus(term(self.under_way, g - 1, i), -1.0) if g else row, 0.0)
            late.also(column, link.from_host_us(int(self.problem.output_bytes[i])))
        self._le("late_us", late.plus(waited, -1.0), 0.0)

    def _backward_us(self, k: int) -> Row:
        choices = zip(self.backward[k - 1], self.problem.backward[k - 1].implementations, strict=True)
        return Row({int(column): choice.time_us for column, choice in choices})
