"""Results on their way to the host while the forward pass runs, as a queue that drains byte by byte.

The rule that it follows is stated in :mod:`loadmaster.models.memory.links`. A result is held until all of it has been
sent; here its bytes go one by one. So the queue is a relaxation of the rule, and a program that chooses by it is late
by the time of one copy at most. On small graphs, where a copy is long compared with the step, results can be held
whole: that takes a binary variable for each result and each operator after it. The constraints (O1) and (R16) are in
:mod:`loadmaster.models.memory.banded` and :mod:`loadmaster.models.memory.relaxation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.groups import GroupedProblem
from loadmaster.models.memory.problem import ForwardOperator
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.solvers.program import IntArray

# Bytes, in units of about a thousandth of the budget, that the link carries beyond its rows. Solvers drop coefficients
# below 1e-9, as of operators of a nanosecond: without slack, what such a row proves would be false.
LINK_SLACK = 1e-5


@dataclass(frozen=True)
class SendQueue:
    """The columns of the queue, -1 for none; with ``whole``, results are held whole. ``offload`` [V]: of o[i].
    ``backlog`` [V + 1]: of b[j], bytes done with but not sent when forward operator j starts (j = V: the backward
    pass). ``gone`` [V, V]: of u[i,j]: with results held whole, i is gone when j starts."""

    offload: IntArray
    backlog: IntArray
    whole: bool
    gone: IntArray


def send_queue(w: RowWriter, g: GroupedProblem, offload: IntArray, *, whole: bool) -> SendQueue:
    """Add the columns b[j] and u[i,j]."""
    backlog = w.builder.columns("backlog", g.count + 1)
    done_with = np.array(g.problem.last_readers)[:, None] < np.arange(g.count)[None, :]
    gone = w.cells("gone", done_with & (offload >= 0)[:, None] & whole)
    return SendQueue(offload, backlog, whole, gone)


def held_bytes(g: GroupedProblem, queue: SendQueue | None, f: ForwardOperator) -> Row:
    """Row of b[j] of (O1), or of the bytes of the results held whole."""
    if queue is None:
        return Row()
    if not queue.whole:
        return Row({int(queue.backlog[f.id]): 1.0})
    held = Row()
    for i in np.flatnonzero(queue.gone[:, f.id] >= 0):
        held.also(int(queue.offload[i]), g.sizes[i]).also(int(queue.gone[i, f.id]), -g.sizes[i])
    return held


def drain_queue(w: RowWriter, g: GroupedProblem, queue: SendQueue, costs: list[tuple[Row, float]]) -> None:
    """Add (O1): what is done with joins the queue; the link takes from it while operators run and while they wait. Each
    result sent is paid for here: by so much the next operator starts later, and the link carries on."""
    link = g.problem.host_link
    assert link is not None
    per_us = link.to_host_gbps * 1e3 / g.scale.unit_bytes
    stalls = w.builder.columns("stall", g.count + 1)
    joins: dict[int, Row] = {}
    for i in np.flatnonzero(queue.offload >= 0):
        cut_us = link.cutting_us(int(g.problem.output_bytes[i]))
        w.cost(int(queue.offload[i]), cut_us)
        left = g.sizes[i] - per_us * cut_us
        joins.setdefault(g.problem.last_readers[i], Row()).also(int(queue.offload[i]), left)
    for j in range(1, g.count + 1):
        w.cost(int(stalls[j]), g.wait_us)
        cost, constant = costs[j - 1]
        drained = Row({int(queue.backlog[j - 1]): 1.0}).plus(cost, -per_us)
        waited = Row({int(queue.backlog[j]): -1.0, int(stalls[j]): -per_us * g.wait_us})
        if j - 1 in joins:
            # The link cannot have taken, while j - 1 ran, what joins the queue after it.
            left = w.amount("left_in_queue")
            w.at_most("left_in_queue", drained.also(left, -1.0), per_us * constant + LINK_SLACK)
            w.at_most("backlog", waited.plus(joins[j - 1]).also(left), LINK_SLACK)
        else:
            w.at_most("backlog", drained.plus(waited), per_us * constant + LINK_SLACK)
    if queue.whole:
        hold_whole_results(w, g, queue)
    # The backward pass starts when everything has left.
    w.at_most("drained", Row({int(queue.backlog[g.count]): 1.0}), LINK_SLACK)


def hold_whole_results(w: RowWriter, g: GroupedProblem, queue: SendQueue) -> None:
    """Add (R16): a result is held until all of it has been sent, and gone from then on."""
    for i, j in zip(*(map(int, places) for places in np.nonzero(queue.gone >= 0)), strict=True):
        later = term(queue.gone, i, j + 1) if j + 1 < g.count else term(queue.offload, i)
        w.at_most("gone", term(queue.gone, i, j).plus(later, -1.0), 0.0)
    for f in g.problem.forward:
        held = held_bytes(g, queue, f)
        w.at_most("held_whole", Row({int(queue.backlog[f.id]): 1.0}).plus(held, -1.0), 0.0)
