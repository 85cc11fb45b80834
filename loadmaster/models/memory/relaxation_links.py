"""The host link in the boundary relaxation: time cannot undercut what it carries, nor memory what is on its way.

The constraints (R13) to (R16), and what the columns mean, are in :mod:`loadmaster.models.memory.relaxation`. The rule
that schedules follow is in :mod:`loadmaster.models.memory.links`; here bytes travel one by one. Where an operator takes
longer than the relaxation makes it, the difference is a wait (a stall) here, at the same cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.forward_pass import BackwardColumns
from loadmaster.models.memory.groups import GroupedProblem
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.models.memory.send_queue import LINK_SLACK, SendQueue, send_queue
from loadmaster.solvers.program import IntArray

# Up to this many cells, of results and forward operators or groups, results are held whole while they travel.
WHOLE_CELLS = 1_500


@dataclass(frozen=True)
class LinkColumns:
    """The columns of a relaxation about the link: ``queue``, of the forward pass, and f, p and z. ``fetch`` and
    ``under_way`` (-1 for none): of f[g,i] and z[g,i] [groups, V]; ``prefetched``: of p[g] [groups]."""

    queue: SendQueue
    fetch: IntArray
    prefetched: IntArray
    under_way: IntArray


def link_columns(w: RowWriter, grouped: GroupedProblem, offload: IntArray, fetch: IntArray) -> LinkColumns:
    """Add the columns b[j], u[i,j], p[g] and z[g,i]."""
    whole = grouped.count * max(grouped.count, len(grouped.groups)) <= WHOLE_CELLS
    queue = send_queue(w, grouped, offload, whole=whole)
    prefetched = w.builder.columns("prefetched", len(grouped.groups))
    later = np.zeros(fetch.shape, dtype=bool)
    later[:-1] = fetch[1:] >= 0
    return LinkColumns(queue, fetch, prefetched, w.cells("under_way", later & whole))


def on_the_way(grouped: GroupedProblem, links: LinkColumns | None, g: int, k: int) -> Row:
    """Row of p[g], or of what is under way whole, for stage k; it counts from the start of the stage that issued it."""
    if links is None or k != grouped.groups[g][1]:
        return Row()
    if not links.queue.whole:
        return Row({int(links.prefetched[g]): 1.0})
    under_way = links.under_way[g]
    return Row({int(under_way[i]): grouped.sizes[i] for i in np.flatnonzero(under_way >= 0)})


def sending(w: RowWriter, grouped: GroupedProblem, links: LinkColumns, stored: IntArray) -> None:
    """Add (R13): what is sent is not kept, only that is fetched, and the host has room for it."""
    link = grouped.problem.host_link
    assert link is not None
    sent, offload = Row(), links.queue.offload
    for i in map(int, np.flatnonzero(offload >= 0)):
        sent.also(int(offload[i]), grouped.sizes[i])
        if stored[i] >= 0:
            w.at_most("offload", Row({int(offload[i]): 1.0, int(stored[i]): 1.0}), 1.0)
        for g in map(int, np.flatnonzero(links.fetch[:, i] >= 0)):
            w.at_most("fetch", Row({int(links.fetch[g, i]): 1.0, int(offload[i]): -1.0}), 0.0)
    if link.capacity_bytes is not None:
        w.at_most("capacity", sent, grouped.scale.room(link.capacity_bytes))


def fetching(
    w: RowWriter, grouped: GroupedProblem, links: LinkColumns, backward: BackwardColumns, spent: list[Row]
) -> None:
    """Add (R14) and (R15): what is fetched in a group has been on its way before, or takes the group's time."""
    link = grouped.problem.host_link
    assert link is not None
    per_us = link.from_host_gbps * 1e3 / grouped.scale.unit_bytes
    before = Row()
    for g, (a, b) in enumerate(grouped.groups):
        stall = w.amount("fetch_stall")
        w.cost(stall, grouped.wait_us)
        waited = Row({stall: grouped.wait_us})
        last, others = _backward_us(grouped, backward, b), Row()
        for k in range(a, b):
            others.plus(_backward_us(grouped, backward, k))
        fetch = links.fetch[g]
        arriving = Row({int(fetch[i]): grouped.sizes[i] for i in np.flatnonzero(fetch >= 0)})
        row = Row(arriving).plus(before, -1.0).plus(waited, -per_us)
        if a < b:
            row.plus(others, -per_us).plus(spent[g], -per_us)
        w.at_most("arrival", row, LINK_SLACK)
        after = Row({int(links.prefetched[g]): 1.0})
        row = Row(arriving).plus(after).plus(before, -1.0).plus(waited, -per_us)
        row.plus(others, -per_us).plus(last, -per_us).plus(spent[g], -per_us)
        w.at_most("prefetch", row, LINK_SLACK)
        before = after
        if links.queue.whole:
            hold_whole_fetches(w, grouped, links, g, waited)


def hold_whole_fetches(w: RowWriter, grouped: GroupedProblem, links: LinkColumns, g: int, waited: Row) -> None:
    """Add (R16): what is under way stays so until it arrives; what was not keeps the stage that fetches it waiting."""
    link = grouped.problem.host_link
    assert link is not None
    a, b = grouped.groups[g]
    fetch, under_way = links.fetch, links.under_way
    prefetched = Row({int(links.prefetched[g]): 1.0})
    w.at_most("under_way", prefetched.plus(on_the_way(grouped, links, g, b), -1.0), 0.0)
    for i in map(int, np.flatnonzero(under_way[g] >= 0)):
        row = term(under_way, g, i).plus(term(fetch, g + 1, i), -1.0)
        w.at_most("under_way", row.plus(term(under_way, g + 1, i), -1.0), 0.0)
    if a < b:
        return
    late_us = Row()
    for i in map(int, np.flatnonzero(fetch[g] >= 0)):
        column = w.share("late")
        row = term(fetch, g, i).also(column, -1.0)
        w.at_most("late", row.plus(term(under_way, g - 1, i), -1.0) if g else row, 0.0)
        late_us.also(column, link.from_host_us(int(grouped.problem.output_bytes[i])))
    w.at_most("late_us", late_us.plus(waited, -1.0), 0.0)


def _backward_us(grouped: GroupedProblem, backward: BackwardColumns, k: int) -> Row:
    choices = zip(backward.choices[k - 1], grouped.problem.backward[k - 1].implementations, strict=True)
    return Row({int(column): choice.time_us for column, choice in choices})
