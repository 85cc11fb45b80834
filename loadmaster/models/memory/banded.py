r"""The banded restriction: MONeT with recomputation only at the start of *slots*, near where results are read.

Source: MONeT, [Shah23] section 4.3, restricted; with offload after SSDTrain's recompute-offload-keep [Wu24]. Every
point is a plan, so its optimum is an upper bound; its own bound proves nothing.

Sets: as in :mod:`relaxation`; the groups are here called slots h = 0..H-1, slot h holding the stages a_h..b_h. Slot h
may recompute the results of a *band* (:mod:`bands`), all at the start of its first stage.

An example: four operators 0..3, each reading the one before it; backward 1 to 4 are those of operators 3 to 0, and each
reads what its operator reads: backward 1 result 2, backward 2 result 1, backward 3 result 0, backward 4 nothing. With
slots (1, 2) and (3, 4), and 0 alone kept by the forward pass, the first slot recomputes 1 and 2 before backward 1 runs:
s[0,0] = s[1,0] = 1 and r[0,1] = r[0,2] = 1. Then v[1,2] = 1 (backward 1 reads result 2), v[1,1] = v[2,1] = 1 (result 1
is made with it, but read by backward 2 only) and v[k,0] = 1 for k = 1, 2, as s[1,0] = 1: while backward 1 runs, all of
0, 1 and 2 stand in memory. With a slot for every stage, result 1 could go and come again, for one more recomputation.

Variables (binary unless said):
    s[h,i]  result i is on the device when slot h starts; one column until something can happen to i, then continuous
    r[h,i], y[h,i,c], q[h,i]  slot h recomputes i, with implementation c, in place
    d[k,l], y0[i,c], q0[i]    backward implementation; forward implementation, in place
    z[i], z[h,i]  continuous: encoded result i is computed with a parent that runs in place (section 4.3.4)
    v[k,i]  continuous: i is present while stage k runs, because k or a later stage of the slot reads it, or s[h+1,i]
    e[h,i]  slot h keeps i, which its first stage reads, beyond that stage: counted once there where live, else twice
    x[h,n]  continuous: bytes just before the n-th result whose presence changes while slot h recomputes
    o[i], f[h,i]  i is sent to the host; arrives when slot h starts, on its way during slot h-1
    g[h,i]  f[h,i], but on its way only when slot h starts, which waits for it (on small graphs)
    b[j], w[j]  continuous: bytes waiting for the link when forward j starts; those of them left over when j-1 ended
    stall[j], stall[h]  continuous: waits in microseconds

Objective: forward + recomputation + backward costs + stalls (4.9) + sum(c_i o[i]), c_i the time by which sending
result i cuts a compiled graph (:meth:`HostLink.cutting_us`).

Constraints, numbered as in [Shah23] where they are its own, by which every sum of bytes is at most M (4.16):
(4.7)  what is recomputed finds its inputs: r[h,j] <= s[h,i] + r[h,i] + f[h,i] for inputs i of j, and
       r[h,e] <= r[h,parent] for encoded e - `recompute_dependencies`;
       only what is there is carried on: s[h+1,i] <= s[h,i] + r[h,i] + f[h,i] - `presence`
(4.8)  what backward operators read has been there since the slot recomputed: v[a_h,i] <= s + r + f - `presence`
(B.a)  present is what is read now or later: v[k,i] >= needs at k, v[k+1,i]; v[b_h,i] >= s[h+1,i] - `presence`
(B.b)  what the last stage of a slot reads from storage is stored into the next - `presence`
(4.10) running j in place loses what it overwrites, u: q[h,j] <= r[h,j] (4.11); q[h,j] + v[a_h,u] <= 1;
       q[h,j] + r[h,n] <= 1 for later readers n of u - `in_place_overwrite`; in the forward pass likewise, with s[0,u]
       and s[0,n] (1 if n encodes nothing) - `forward_memory`
(B.c)  kept beyond the first stage is what is there: e[h,i] <= v[a_h + 1,i], s[h+1,i] in a slot of one stage; e is that
       itself if binary - `recompute_memory`
(4.14) slot h recomputes j: workspace + r (m_j + |L_j|) + bytes elsewhere <= M - `recompute_memory`
(4.15) x follows the bytes from result to result; x <= M - `byte_levels`; and from stage to stage - `backward_memory`
(4.12) backward k: workspace + gradients + sum(m_i v[k,i]) <= M - `backward_memory`
(4.1)  forward j: workspace + m_j + |L_j| + kept before + b[j] <= M - `forward_memory`
(M.a)  one implementation each - `single_backward_implementation`
(O1)   b[j] >= bytes last read by j-1 and sent + w - bandwidth (stall[j] + sum(c_i o[i], i last read by j-1));
       w >= b[j-1] - bandwidth (time of j-1), 0 where nothing joins the queue; b[V] = 0 - `drain_queue`
(O2)   o[i] + s[0,i] <= 1; f[h,i] <= o[i]; bytes sent <= host capacity; what is overwritten is not sent - `sending`
(O3)   g[h,i] <= f[h,i]; bytes f[h] - g[h] take no longer than slot h-1 and stall[h], and stand in memory there (4.15);
       bytes g[h] cost their time - `fetching`
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.banded_columns import BandedColumns, add_columns
from loadmaster.models.memory.banded_offload import fetching, on_its_way, sending
from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.bands import BoolArray
from loadmaster.models.memory.forward_pass import (
    BackwardColumns,
    ForwardColumns,
    ForwardRules,
    forward_memory,
    single_backward_implementation,
)
from loadmaster.models.memory.groups import GroupedProblem, in_groups, least_workspace_bytes
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.models.memory.send_queue import drain_queue, held_bytes, send_queue

# A choice of implementation gets columns when it moves at least this share of the budget in workspace; below it the
# least workspace is assumed here, and the cheapest that fits is taken afterwards (:mod:`completion`).
NOTICEABLE = 0.002
# Tensors below this share of the budget are not worth the link.
WORTH_SENDING = 0.002

# What is present in each stage of a slot: for stage k a row for every result, v[k,i] or what it equals.
Presence = dict[int, list[Row]]


def build(
    problem: MemoryProblem,
    budget_bytes: int | None,
    starts: Sequence[int],
    allowed: BoolArray,
    *,
    offload: bool,
    to_the_byte: bool = False,
    out_of_time: Callable[[], bool] | None = None,
) -> Banded:
    """Build one banded restriction, with slots whose first stages are ``starts``.

    Args:
        budget_bytes: None to minimize it, whatever the time.
        allowed: [slots, V], which recomputations are considered.
        offload: whether results may travel to the host (needs a host link and a time objective).
        to_the_byte: the budget may be filled to the byte, and a solver's tolerance may take some too many. Otherwise
            rows that are not exact keep clear of it (:class:`~loadmaster.models.memory.choices.ByteScale`).
        out_of_time: once true, the writing ends with :class:`~loadmaster.models.memory.rows.OutOfTimeError`.
    """
    grouped = in_groups(problem, budget_bytes, starts, NOTICEABLE, relaxes=to_the_byte)
    w = RowWriter(grouped.scale, budget_bytes, out_of_time)
    travels = offload and problem.may_offload
    least_sent_bytes = WORTH_SENDING * (budget_bytes or 0) if travels else np.inf
    c = add_columns(w, grouped, allowed, least_sent_bytes=least_sent_bytes)
    backward = single_backward_implementation(w, problem)
    queue = send_queue(w, grouped, c.offload, whole=False) if travels else None
    rules = ForwardRules(
        survives=lambda i: term(c.stored, 0, i).plus(term(c.offload, i)),
        keep_encoded=lambda forward, f, before, taken_bytes: encoded_forward_memory(
            w, grouped, forward, f, before, taken_bytes
        ),
        sending=lambda f: held_bytes(grouped, queue, f),
    )
    forward = forward_memory(w, grouped, c.stored[0], rules)
    if queue is not None:
        drain_queue(w, grouped, queue, forward.costs)
        sending(w, grouped, c)
    kept: list[dict[int, Row]] = []
    for h in range(len(grouped.groups)):
        recompute_dependencies(w, grouped, c, h)
        present = presence(w, grouped, c, backward, h)
        in_place_overwrite(w, grouped, c, h, present)
        level = byte_levels(w, grouped, c, h, present)
        kept.append(recompute_memory(w, grouped, c, h, present, level))
        backward_memory(w, grouped, backward, h, present, level)
        if queue is not None and h > 0:
            fetching(w, grouped, c, backward, h)
    return Banded(w.build(), problem, grouped.groups, grouped.scale.unit_bytes, c, backward, forward, kept)


def encoded_forward_memory(
    w: RowWriter, grouped: GroupedProblem, forward: ForwardColumns, f: ForwardOperator, before: Row, taken_bytes: int
) -> None:
    """Add (4.1) for an encoded result: computed exactly when kept, in place exactly when its parent is."""
    kept = int(forward.stored[f.id])
    if kept < 0:
        return
    cost = Row({kept: min(grouped.problem.cost(c) for c in f.implementations)})
    workspace_bytes = max(c.workspace_bytes for c in f.implementations)
    parent = int(forward.in_place[f.encodes]) if f.encodes is not None else -1
    if f.in_place is not None and parent >= 0:
        both = w.both("encoded_in_place", kept, parent)
        cost.also(both, grouped.problem.in_place_cost(f.in_place))
        before.also(both, grouped.scale.units(f.in_place.workspace_delta_bytes))
    forward.costs[f.id] = cost, 0.0
    w.objective.plus(cost)
    gradients_bytes = grouped.problem.gradient_bytes(0)
    alone = grouped.scale.units(workspace_bytes + taken_bytes - gradients_bytes)
    w.fits("forward_encoded", before.also(kept, alone), gradients_bytes)


def recompute_dependencies(w: RowWriter, grouped: GroupedProblem, c: BandedColumns, h: int) -> None:
    """Add (4.7): inputs of what is recomputed are there, arrive, or are recomputed too."""
    for j in c.recomputable(h):
        f = grouped.problem.forward[j]
        for i in f.inputs:
            w.at_most("dependency", term(c.recompute, h, j).plus(c.available(h, i), -1.0), 0.0)
        if f.encodes is not None:
            parent = term(c.recompute, h, f.encodes)
            w.at_most("encoded", term(c.recompute, h, j).plus(parent, -1.0), 0.0)


def presence(w: RowWriter, grouped: GroupedProblem, c: BandedColumns, backward: BackwardColumns, h: int) -> Presence:
    """Add (4.7), (4.8), (B.a) and (B.b), and give v from the last stage of the slot to its first. A result gets a
    column for a stage that may read it while it may stay for another reason; what stays for one reason alone is written
    as that reason: the row of the choices that read it, or s[h+1,i]."""
    a, b = grouped.groups[h]
    current = [c.on_device_next(h, i) for i in range(grouped.count)]
    for i, later in enumerate(current):
        if later and later != term(c.stored, h, i):
            w.at_most("carry", Row(later).plus(c.available(h, i), -1.0), 0.0)
    found: Presence = {}
    touched: set[int] = set()
    for k in range(b, a - 1, -1):
        w.look_at_the_clock()
        for i in grouped.wanted(k):
            touched.add(i)
            needs = backward.needs[k, i]
            if current[i]:
                column = Row({w.share("present"): 1.0})
                w.at_most("present", Row(needs).plus(column, -1.0), 0.0)
                w.at_most("present", Row(current[i]).plus(column, -1.0), 0.0)
                current[i] = column
            else:
                current[i] = Row(needs)
        found[k] = list(current)
    for i in touched:
        w.at_most("available", Row(found[a][i]).plus(c.available(h, i), -1.0), 0.0)
    for i in grouped.wanted(b):
        if stored := c.on_device_next(h, i):
            made_here = term(c.recompute, h, i) if a == b else Row()
            row = Row(backward.needs[b, i]).plus(stored, -1.0).plus(made_here, -1.0)
            w.at_most("stored_through", row, 0.0)
    return found


def in_place_overwrite(w: RowWriter, grouped: GroupedProblem, c: BandedColumns, h: int, present: Presence) -> None:
    """Add (4.10): what is overwritten is not present any more, and nobody reads it later in the stage."""
    a, _ = grouped.groups[h]
    for j in map(int, np.flatnonzero(c.recompute_in_place[h] >= 0)):
        in_place = grouped.problem.forward[j].in_place
        assert in_place is not None
        inside = term(c.recompute_in_place, h, j)
        w.at_most("in_place", Row(inside).plus(term(c.recompute, h, j), -1.0), 0.0)
        w.at_most("in_place", Row(inside).plus(present[a][in_place.overwrites]), 1.0)
        for reader in grouped.problem.consumers[in_place.overwrites]:
            if reader > j and c.recompute[h, reader] >= 0:
                w.at_most("in_place", Row(inside).plus(term(c.recompute, h, reader)), 1.0)


@dataclass(frozen=True)
class ByteLevels:
    """The bytes on the device while a slot recomputes, as a chain: ``columns[n]`` before ``changing[n]``. With results
    1 and 4 changing, ``columns`` are the bytes before result 1, from there to 4, and after 4."""

    changing: list[int]
    columns: list[int]

    def before(self, j: int) -> int:
        """The column of the bytes just before result j."""
        return self.columns[bisect.bisect_left(self.changing, j)]

    @property
    def last(self) -> int:
        """The column of the bytes after all recomputation."""
        return self.columns[-1]


def byte_levels(w: RowWriter, grouped: GroupedProblem, c: BandedColumns, h: int, present: Presence) -> ByteLevels:
    """Add (4.15): the bytes just before each result, as a chain from one changing result to the next. What is stored
    and stays the same throughout the slot's recomputation is summed once, so that rows stay short."""
    a, _ = grouped.groups[h]
    taken_bytes = grouped.problem.gradient_bytes(a)
    after = present[a]
    before = [c.on_device(h, i) for i in range(grouped.count)]
    changing = [i for i in range(grouped.count) if (before[i] or after[i]) and before[i] != after[i]]
    first = Row()
    for i in range(grouped.count):
        first.plus(before[i], grouped.sizes[i])
        first.plus(on_its_way(c, h + 1, i), grouped.sizes[i])
    columns = [_level(w, "level", first, taken_bytes)]
    for i in changing:
        change = Row(after[i]).plus(before[i], -1.0)
        columns.append(_level(w, "level", Row({columns[-1]: 1.0}).plus(change, grouped.sizes[i]), taken_bytes))
    return ByteLevels(changing, columns)


def _level(w: RowWriter, name: str, equals: Row, taken_bytes: int) -> int:
    """A column that equals a row, with room for ``taken_bytes`` next to it under the budget."""
    room = w.room(taken_bytes)
    upper = np.inf if w.minimizes_budget else max(room, 0.0)
    column = int(w.builder.columns(name, 1, upper=upper)[0])
    if w.minimizes_budget or room < 0:
        w.fits("room", Row({column: 1.0}), taken_bytes)
    w.equal(name, Row(equals).also(column, -1.0))
    return column


def recompute_memory(
    w: RowWriter, grouped: GroupedProblem, c: BandedColumns, h: int, present: Presence, level: ByteLevels
) -> dict[int, Row]:
    """Add (4.14) and (B.c) for each recomputation; return, for each result that the first stage reads, if it keeps
    it."""
    a, b = grouped.groups[h]
    forward, sizes = grouped.problem.forward, grouped.sizes
    gradients_bytes = grouped.problem.gradient_bytes(a)
    wanted = set(grouped.wanted(a))
    live = {i for j in c.recomputable(h) for i in forward[j].live_inputs}
    later = present[a + 1] if a < b else [c.on_device_next(h, i) for i in range(grouped.count)]
    kept = {i: _keeps(w, later[i]) if i in live else later[i] for i in wanted}
    for j in c.recomputable(h):
        w.look_at_the_clock()
        f = forward[j]
        row = Row({level.before(j): 1.0}).plus(c.on_device(h, j), -sizes[j])
        for i in f.live_inputs:
            row.plus(kept.get(i, present[a][i]), -sizes[i])
        held_bytes = f.output_bytes + f.live_bytes
        if (h, j) in c.recompute_choices:
            columns, numbers = c.recompute_choices[h, j]
            for column, number in zip(columns, numbers, strict=True):
                row.also(int(column), grouped.scale.units(f.recompute_implementations[number].workspace_bytes))
        else:
            held_bytes += least_workspace_bytes(f.recompute_implementations)
        if f.in_place is not None:
            inside = term(c.recompute_in_place, h, j).plus(term(c.encoded_in_place, h, j))
            row.plus(inside, grouped.scale.units(f.in_place.workspace_delta_bytes))
        w.fits("recompute", row.plus(term(c.recompute, h, j), grouped.scale.units(held_bytes)), gradients_bytes)
    return kept


def _keeps(w: RowWriter, later: Row) -> Row:
    """Row that tells whether the first stage of a slot keeps a result that it reads: whole, or not at all."""
    if not w.shares & later.keys():
        return later  # binary as it stands
    column = w.binary("kept")
    w.at_most("kept", Row({column: 1.0}).plus(later, -1.0), 0.0)
    return Row({column: 1.0})


def backward_memory(
    w: RowWriter, grouped: GroupedProblem, backward: BackwardColumns, h: int, present: Presence, level: ByteLevels
) -> None:
    """Add (4.12), and (4.15) at the start of later stages: backward operators, with what the slot still holds."""
    a, b = grouped.groups[h]
    bytes_held = level.last
    for k in range(a, b + 1):
        w.look_at_the_clock()
        operator = grouped.problem.backward[k - 1]
        if k > a:
            # What stage k-1 held is stored when stage k starts; then what k-1 read last is gone.
            w.fits("stage_start", Row({bytes_held: 1.0}), grouped.problem.gradient_bytes(k))
            step = Row({bytes_held: 1.0})
            for i in range(grouped.count):
                now, then = present[k][i], present[k - 1][i]
                if now is not then and now != then:
                    step.plus(now, grouped.sizes[i]).plus(then, -grouped.sizes[i])
            bytes_held = _level(w, "held", step, 0)
        row = Row({bytes_held: 1.0})
        for column, choice in zip(backward.choices[k - 1], operator.implementations, strict=True):
            row.also(int(column), grouped.scale.units(choice.workspace_bytes))
        w.fits("backward", row, operator.live_bytes + operator.fixed_bytes + operator.output_bytes)
