"""The host link in the banded restriction: what is sent in the forward pass, what is fetched while slots compute.

The constraints (O2) and (O3), and what the columns mean, are in :mod:`loadmaster.models.memory.banded`; (O1) is in
:mod:`loadmaster.models.memory.send_queue`.
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.memory.banded_columns import BandedColumns
from loadmaster.models.memory.forward_pass import BackwardColumns
from loadmaster.models.memory.groups import GroupedProblem
from loadmaster.models.memory.rows import Row, RowWriter, term


def on_its_way(c: BandedColumns, h: int, i: int) -> Row:
    """Row of f - g: the result travels while slot h-1 computes."""
    return term(c.fetch, h, i).plus(term(c.late, h, i), -1.0) if h < len(c.fetch) else Row()


def sending(w: RowWriter, grouped: GroupedProblem, c: BandedColumns) -> None:
    """Add (O2): what is sent is not kept, only that is fetched, and the host has room for it."""
    link = grouped.problem.host_link
    assert link is not None
    for i in map(int, np.flatnonzero(c.offload >= 0)):
        column = int(c.offload[i])
        w.at_most("offload", Row({column: 1.0}).plus(term(c.stored, 0, i)), 1.0)
        for h in map(int, np.flatnonzero(c.fetch[:, i] >= 0)):
            w.at_most("fetch", term(c.fetch, h, i).also(column, -1.0), 0.0)
    if link.capacity_bytes is not None:
        sent = Row({int(c.offload[i]): grouped.sizes[i] for i in np.flatnonzero(c.offload >= 0)})
        w.at_most("capacity", sent, grouped.scale.room(link.capacity_bytes))


def fetching(w: RowWriter, grouped: GroupedProblem, c: BandedColumns, backward: BackwardColumns, h: int) -> None:
    """Add (O3): what arrives at slot h travels while slot h-1 computes, or keeps slot h waiting."""
    problem, link = grouped.problem, grouped.problem.host_link
    assert link is not None
    row = Row()
    for i in map(int, np.flatnonzero(c.fetch[h] >= 0)):
        copy_us = link.from_host_us(int(problem.output_bytes[i]))
        row.plus(on_its_way(c, h, i), copy_us)
        if c.late[h, i] >= 0:
            w.cost(int(c.late[h, i]), copy_us)
            w.at_most("late", term(c.late, h, i).plus(term(c.fetch, h, i), -1.0), 0.0)
    if not row:
        return
    a, b = grouped.groups[h - 1]
    row.plus(c.spent[h - 1], -1.0)
    for k in range(a, b + 1):
        for column, choice in zip(backward.choices[k - 1], problem.backward[k - 1].implementations, strict=True):
            row.also(int(column), -choice.time_us)
    stall = w.amount("fetch_stall")
    w.cost(stall, grouped.wait_us)
    w.at_most("fetch_time", row.also(stall, -grouped.wait_us), 0.0)
