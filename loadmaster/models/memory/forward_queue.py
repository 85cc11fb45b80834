"""Results on their way to the host while the forward pass runs, as a queue that drains byte by byte.

The rule that it follows is stated in :mod:`loadmaster.models.memory.links`. A result is held until all of it has been
sent; here its bytes go one by one. So the queue is a relaxation of the rule, and a program that chooses by it is late
by the time of one copy at most. On small graphs, where a copy is long beside the step, results can be held whole: that
takes a binary variable for each result and each operator after it. The constraints (O1) are in the formulations that
use the queue.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.grouped import Grouped
from loadmaster.models.memory.problem import ForwardOperator
from loadmaster.models.memory.reach import MIB, Row, term
from loadmaster.solvers.program import IntArray


class ForwardQueue(Grouped):
    """Columns and rows of the queue.

    Attributes:
        queues: whether anything may be sent.
        offload: [V], columns of o[i], -1 where there is none.
        gone: [V, V], columns of u[i,j], -1 where there is none: with results held whole, i is gone when j starts.
    """

    queues: bool
    offload: IntArray
    gone: IntArray

    def add_queue_columns(self, *, whole: bool) -> None:
        """b[j]: MiB done with and not sent when forward operator j starts (j = V: the backward pass); u[i,j]."""
        self._backlog = self.builder.columns("backlog", self.count + 1)
        done_with = np.array(self.problem.last_readers)[:, None] < np.arange(self.count)[None, :]
        self.gone = self._cells("gone", done_with & (self.offload >= 0)[:, None] & whole)
        self._whole = whole

    def _beside(self, f: ForwardOperator) -> Row:
        """b[j] of (O1), or the bytes of the results held whole."""
        if not self.queues:
            return Row()
        if not self._whole:
            return Row({int(self._backlog[f.id]): 1.0})
        held = Row()
        for i in np.flatnonzero(self.gone[:, f.id] >= 0):
            held.also(int(self.offload[i]), self.sizes[i]).also(int(self.gone[i, f.id]), -self.sizes[i])
        return held

    def add_queue(self) -> None:
        """(O1): what is done with joins the queue, the link takes from it while operators run and while they wait."""
        link = self.problem.host_link
        assert link is not None
        per_us = link.to_host_gbps * 1e3 / MIB
        stalls = self.builder.columns("stall_us", self.count + 1)
        joins: dict[int, Row] = {}
        for i in np.flatnonzero(self.offload >= 0):
            row = joins.setdefault(self.problem.last_readers[i], Row())
            row.also(int(self.offload[i]), self.sizes[i])
        for j in range(1, self.count + 1):
            self._cost(int(stalls[j]), 1.0)
            cost, constant = self.forward_cost[j - 1]
            drained = Row({int(self._backlog[j - 1]): 1.0}).plus(cost, -per_us)
            waited = Row({int(self._backlog[j]): -1.0, int(stalls[j]): -per_us})
            if j - 1 in joins:
                # The link cannot have taken, while j - 1 ran, what joins the queue after it.
                left = int(self.builder.columns("left_in_queue", 1)[0])
                self._le("left_in_queue", drained.also(left, -1.0), per_us * constant)
                self._le("backlog", waited.plus(joins[j - 1]).also(left), 0.0)
            else:
                self._le("backlog", drained.plus(waited), per_us * constant)
        if self._whole:
            self.add_whole_results()
        # The backward pass starts when everything has left.
        self._le("drained", Row({int(self._backlog[self.count]): 1.0}), 0.0)

    def add_whole_results(self) -> None:
        """(R16): a result is held until all of it has been sent, and gone from then on."""
        for i, j in zip(*(map(int, places) for places in np.nonzero(self.gone >= 0)), strict=True):
            later = term(self.gone, i, j + 1) if j + 1 < self.count else term(self.offload, i)
            self._le("gone", term(self.gone, i, j).plus(later, -1.0), 0.0)
        for f in self.problem.forward:
            self._le("held_whole", Row({int(self._backlog[f.id]): 1.0}).plus(self._beside(f), -1.0), 0.0)
