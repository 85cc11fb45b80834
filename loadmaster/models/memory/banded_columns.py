"""The columns of a banded restriction that slots have: what is stored, recomputed, sent and fetched.

What they mean is in :mod:`loadmaster.models.memory.banded`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.bands import BoolArray, slots_of_stages
from loadmaster.models.memory.groups import GroupedProblem, direct_uses, worthwhile
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.solvers.program import IntArray

# At most so many implementations of a recomputation get columns: cheapest, middle of the front, least workspace.
CHOICES = 3
# Up to this many cells of slots and results, a slot may fetch what it has no room for while the slot before computes.
LATE_CELLS = 1_500


@dataclass(frozen=True)
class BandedColumns:
    """Columns of the slots, -1 for none.

    Attributes:
        stored: of s[h,i] [slots + 1, V].
        recompute, recompute_in_place, encoded_in_place: of r[h,i], q[h,i] and z[h,i] [slots, V].
        recompute_choices: for a slot and a result, the columns of y and the implementations they stand for.
        offload, fetch, late: of o[i] [V], f[h,i] and g[h,i] [slots, V].
        spent: for each slot, the objective of its recomputations.
    """

    stored: IntArray
    recompute: IntArray
    recompute_in_place: IntArray
    encoded_in_place: IntArray
    recompute_choices: dict[tuple[int, int], tuple[IntArray, tuple[int, ...]]]
    offload: IntArray
    fetch: IntArray
    late: IntArray
    spent: list[Row]

    def recomputable(self, h: int) -> list[int]:
        """The results that slot h may recompute."""
        return [int(i) for i in np.flatnonzero(self.recompute[h] >= 0)]

    def on_device(self, h: int, i: int) -> Row:
        """Row of s + f: the result is there when slot h starts."""
        return term(self.stored, h, i).plus(term(self.fetch, h, i))

    def on_device_next(self, h: int, i: int) -> Row:
        """Row of s[h+1,i]; empty after the last slot."""
        return term(self.stored, h + 1, i) if h + 1 < len(self.recompute) else Row()

    def available(self, h: int, i: int) -> Row:
        """Row of s + f + r: the result is there when slot h starts, or recomputed by it."""
        return self.on_device(h, i).plus(term(self.recompute, h, i))


def add_columns(w: RowWriter, grouped: GroupedProblem, allowed: BoolArray, *, least_sent_bytes: float) -> BandedColumns:
    """The columns for the recomputations ``allowed`` [slots, V], and for sending results of at least that size."""
    problem, shape = grouped.problem, (len(grouped.groups), grouped.count)
    read_in, events = _events(problem, grouped.groups, allowed)
    offload = w.cells("offload", _sendable(problem, events, least_sent_bytes))
    fetch = w.cells("fetch", _fetchable(offload, events, shape))
    late = w.cells("late", (fetch >= 0) & (fetch.size <= LATE_CELLS))
    stored = np.full((shape[0] + 1, shape[1]), -1, dtype=np.int64)
    for i in range(grouped.count):
        _add_storage(w, stored[:-1, i], events[i], read_in[i])
    columns = BandedColumns(
        stored=stored,
        recompute=w.cells("recompute", allowed),
        recompute_in_place=np.full(shape, -1, dtype=np.int64),
        encoded_in_place=np.full(shape, -1, dtype=np.int64),
        recompute_choices={},
        offload=offload,
        fetch=fetch,
        late=late,
        spent=[Row() for _ in grouped.groups],
    )
    for h in range(shape[0]):
        for i in columns.recomputable(h):
            _add_recompute(w, grouped, columns, h, i)
    return columns


def _events(
    problem: MemoryProblem, groups: list[tuple[int, int]], allowed: BoolArray
) -> tuple[list[set[int]], list[set[int]]]:
    """Slots that may read each result, and those where anything can happen to it."""
    slot = slots_of_stages(groups)
    read_in = [{slot[k] for k in stages} for stages in direct_uses(problem)]
    events = [set(slots) for slots in read_in]
    for h, i in zip(*np.nonzero(allowed), strict=True):
        events[i].add(int(h))
        for u in problem.forward[i].inputs:
            events[u].add(int(h))
    return read_in, events


def _sendable(problem: MemoryProblem, events: list[set[int]], least_sent_bytes: float) -> BoolArray:
    # Encoded results are small, and computed only when kept: those stay here.
    travels = [f.offloadable and f.encodes is None and bool(events[f.id]) for f in problem.forward]
    sendable: BoolArray = np.array(travels) & (problem.output_bytes >= least_sent_bytes)
    return sendable


def _fetchable(offload: IntArray, events: list[set[int]], shape: tuple[int, int]) -> BoolArray:
    """Mask of fetches: to any slot but the first where something can happen to the result."""
    mask = np.zeros(shape, dtype=bool)
    for i in np.flatnonzero(offload >= 0):
        mask[[h for h in events[i] if h > 0], i] = True
    return mask


def _add_storage(w: RowWriter, stored: IntArray, events: set[int], read_in: set[int]) -> None:
    """One column of s for a result from event to event; after the last one only if (B.b) asks for it. With events in
    slots 2 and 5 of eight, the first column holds for slots 0 to 2 and another for slots 3 to 5. If slot 5 may read the
    result, slot 6 has a third one, continuous; slots 6 and 7 have none otherwise."""
    if not events:
        return
    last = max(events)
    column = w.binary("stored")
    for h in range(len(stored)):
        before = h - 1
        if before in events and before != last:
            column = w.binary("stored")
        elif before == last:
            column = w.share("stored") if before in read_in else -1
        elif before > last:
            column = -1
        stored[h] = column


def _add_recompute(w: RowWriter, grouped: GroupedProblem, columns: BandedColumns, h: int, i: int) -> None:
    problem, f = grouped.problem, grouped.problem.forward[i]
    recompute = int(columns.recompute[h, i])
    choices = worthwhile(problem, f.recompute_implementations, grouped.noticeable_bytes)
    if len(choices) > CHOICES:
        choices = [choices[0], choices[len(choices) // 2], choices[-1]]
    cheapest = problem.cost(choices[0][1])
    _spend(w, columns, h, recompute, cheapest)
    if len(choices) > 1:
        chosen = w.choices("recompute_choice", len(choices))
        w.equal("recompute_choice", Row({int(c): 1.0 for c in chosen}).also(recompute, -1.0))
        columns.recompute_choices[h, i] = (chosen, tuple(c for c, _ in choices))
        for column, (_, choice) in zip(chosen, choices, strict=True):
            _spend(w, columns, h, int(column), problem.cost(choice) - cheapest)
    if f.in_place is None:
        return
    if f.encodes is None:
        inside = w.binary("recompute_in_place")
        columns.recompute_in_place[h, i] = inside
    elif columns.recompute_in_place[h, f.encodes] >= 0:
        inside = w.both("encoded_in_place", recompute, int(columns.recompute_in_place[h, f.encodes]))
        columns.encoded_in_place[h, i] = inside
    else:
        return
    _spend(w, columns, h, inside, problem.in_place_cost(f.in_place))


def _spend(w: RowWriter, columns: BandedColumns, h: int, column: int, cost: float) -> None:
    w.cost(column, cost)
    columns.spent[h].also(column, cost)
