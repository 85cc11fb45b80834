r"""The boundary relaxation: a small program whose optimum no plan can beat. It gives proofs, never plans.

Source: MONeT, [Shah23] section 4.2.2, relaxed: instead of every stage, only the *boundaries* between
groups of backward stages are looked at. What matters most is decided there: the bytes that stand in memory when the
forward pass ends. One group (a single boundary) is solved in a second; more groups prove more, and cost more. Rows that
cannot be exact to the byte hold a little more than the budget (:class:`~loadmaster.models.memory.choices.ByteScale`).

Sets: forward operators i = 0..V-1, backward operators k = 1..K split into groups g = 0..G-1, group g holding the stages
a_g..b_g; D_k^l the needs of implementation l of backward k; L_j the live inputs of forward j; m_i bytes of result i;
M the budget less the bytes fixed at the moment in question.

Variables (binary unless said):
    s[g,i]  result i is on the device when group g starts (g = 0: kept by the forward pass)
    r[g,i]  i is recomputed in group g, at least once
    y0[i,c], y[g,i,c]  with implementation c, where the choice trades noticeable workspace for time; y continuous
    d[k,l]  backward k uses implementation l
    q[i]    forward i runs in place in the forward pass
    o[i], f[g,i]  i is sent to the host; is fetched in group g (only with a host link)
    w[g,i,k], e[g,i], v[k,i]  continuous presences, defined below
    b[j], w[j], p[g]  continuous: bytes waiting for the link when forward j starts; those of them left over when j-1
        ended; bytes of later fetches that have arrived when group g ends (only with a host link)
    stall[j], stall[g]  continuous: waits in microseconds
    u[i,j], z[g,i]  binary: result i, sent, has gone when forward j starts; is under way when the last stage of g runs

Objective: forward + recomputation + backward costs, every recomputation at its cheapest, in-place savings granted;
stalls; sum(c_i o[i]), c_i the time by which sending result i cuts a compiled graph (:meth:`HostLink.cutting_us`).

Constraints; each holds for every schedule the checker accepts, so the optimum is a lower bound:
(R1)  r[g,j] <= s[g,i] + r[g,i] (+ f[g,i]) for inputs i of j; r[g,e] <= r[g,parent] for encoded e -
      `recompute_dependencies`
(R2)  s[g+1,i] <= s[g,i] + r[g,i] (+ f[g,i]) - `storage_continuity`
(R3)  d[k,l] <= s[g,i] + r[g,i] (+ f[g,i]) for i in D_k^l; one implementation each - `backward_dependencies`
(R4)  q[j] + s[0,u] <= 1 where running j in place overwrites u; so for later readers e of u, where s[0,e] is 1 for what
      encodes nothing - `forward_memory`
(R5)  forward j: workspace + m_j + |L_j| + sum(m_i s[0,i], i < j, i not in L_j) <= M - `forward_memory`
(R6)  sum(m_i s[g,i]) <= M at the start of group g - `group_start_memory`
(R7)  w[g,i,k] >= d-needs of i after k in the group, and s[g+1,i], each less r[g,i] (and f[g,i]): what is wanted later
      and not made again in the group has been there all along - `backward_memory`
(R8)  v[k,i] >= needs of i at k, w[g,i,k], and s[g+1,i] at k = b_g - `backward_memory`
(R9)  backward k: workspace + gradients + sum(m_i v[k,i] or m_i w[g,i,k]) <= M; a column stands for most of a long
      sum - `backward_memory`
(R10) e[g,i] >= s[g+1,i] - r[g,i], and needs of i at b_g - r[g,i]: there throughout the group - `recompute_memory`
(R11) recomputing j: r[g,j] (workspace + m_j + |L_j|) + sum(m_i e[g,i], i not in L_j or j) <= M - `recompute_memory`
(R12) in a group of one stage, (R11) has s[g,i] for i > j and s[g+1,i] for i < j, not e - `recompute_memory`
(R13) b[j] >= bytes last read by j-1 and sent + w[j] - bandwidth (stall[j] + sum(c_i o[i], i last read by j-1));
      w[j] >= b[j-1] - bandwidth (time of j-1), 0 where nothing joins the queue; b[V] = 0; f[g,i] <= o[i];
      o[i] + s[0,i] <= 1; bytes sent <= host capacity; (R5) has b[j] too - `drain_queue`, `sending`
(R14) bytes f[g] <= p[g-1] + bandwidth (stall[g] + time of group g before its last backward operator; none of that time
      in a group of one stage, which fetches before it recomputes) - `fetching`
(R15) bytes f[g] + p[g] <= p[g-1] + bandwidth (time of group g + stall[g]); (R9) of the group's last stage has p[g] too,
      and (R6) and (R12) of a group of one stage - `fetching`
(R16) on small graphs results travel whole. u[i,j] <= u[i,j+1] <= o[i]; (R5) has sum(m_i (o[i] - u[i,j])) >= b[j] in
      place of b[j]. z[g,i] <= z[g+1,i] + f[g+1,i]; sum(m_i z[g,i]) >= p[g] stands in its place in the rows above; in a
      group of one stage, sum(m_i max(0, f[g,i] - z[g-1,i])) <= bandwidth stall[g] - `hold_whole_results`,
      `hold_whole_fetches`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadmaster.models.memory.forward_pass import (
    BackwardColumns,
    ForwardColumns,
    ForwardRules,
    forward_memory,
    single_backward_implementation,
)
from loadmaster.models.memory.groups import (
    GroupedProblem,
    in_groups,
    last_uses,
    least_workspace_bytes,
    worthwhile,
)
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.relaxation_links import LinkColumns, fetching, link_columns, on_the_way, sending
from loadmaster.models.memory.relaxation_points import Columns, Relaxation
from loadmaster.models.memory.rows import Row, RowWriter, term
from loadmaster.models.memory.send_queue import drain_queue, held_bytes

# A choice of implementation gets variables when it moves at least this share of the budget; below it, the relaxation
# assumes the cheapest time and the least workspace at once, which is still a lower bound.
NOTICEABLE = 0.01
# Longer sums become a column of their own. Written out in each row, those of a loop of 1,400 operators are two million
# coefficients and take 17 s to solve, not 1.3; on graphs of two hundred operators it makes no difference.
LONG = 250


def build(
    problem: MemoryProblem,
    budget_bytes: int | None,
    starts: Sequence[int],
    *,
    out_of_time: Callable[[], bool] | None = None,
) -> Relaxation:
    """Build one boundary relaxation, of groups with the first stages ``starts``; a budget of None is minimized. Once
    ``out_of_time``, the writing ends with :class:`~loadmaster.models.memory.rows.OutOfTimeError`."""
    grouped = in_groups(problem, budget_bytes, starts, NOTICEABLE, relaxes=True)
    w = RowWriter(grouped.scale, budget_bytes, out_of_time)
    columns = _columns(w, grouped)
    links = link_columns(w, grouped, columns.offload, columns.fetch) if problem.may_offload else None
    recompute_dependencies(w, grouped, columns)
    storage_continuity(w, grouped, columns)
    backward = backward_dependencies(w, grouped, columns)
    queue = None if links is None else links.queue
    rules = ForwardRules(
        survives=lambda i: term(columns.stored, 0, i),
        keep_encoded=lambda forward, f, before, taken_bytes: _cost_of_encoded(w, grouped, forward, f),
        sending=lambda f: held_bytes(grouped, queue, f),
    )
    forward = forward_memory(w, grouped, columns.stored[0], rules)
    for g in range(len(grouped.groups)):
        group_start_memory(w, grouped, columns, links, g)
        backward_memory(w, grouped, columns, backward, links, g)
        recompute_memory(w, grouped, columns, backward, links, g)
    if links is not None:
        drain_queue(w, grouped, links.queue, forward.costs)
        sending(w, grouped, links, columns.stored[0])
        fetching(w, grouped, links, backward, columns.spent)
    return Relaxation(w.build(), problem, grouped.groups, grouped.scale, columns, backward)


def _columns(w: RowWriter, grouped: GroupedProblem) -> Columns:
    p = grouped.problem
    starts = np.array([a for a, _ in grouped.groups])
    matters = last_uses(p)[None, :] >= starts[:, None]
    recomputable = np.array([f.recomputable for f in p.forward])
    sendable = np.array([p.may_offload and f.offloadable for f in p.forward]) & matters[0]
    columns = Columns(
        stored=w.cells("stored", matters),
        recompute=w.cells("recompute", matters & recomputable),
        offload=w.cells("offload", sendable),
        fetch=w.cells("fetch", matters & sendable[None, :]),
        recompute_workspace={},
        spent=[Row() for _ in grouped.groups],
    )
    for g, i in zip(*(map(int, places) for places in np.nonzero(columns.recompute >= 0)), strict=True):
        f = p.forward[i]
        choices = [c for _, c in worthwhile(p, f.recompute_implementations, grouped.noticeable_bytes)]
        saving = min(0.0, p.in_place_cost(f.in_place)) if f.in_place is not None else 0.0
        cheapest = p.cost(choices[0])
        cost = columns.spent[g].also(int(columns.recompute[g, i]), max(0.0, cheapest + saving))
        if len(choices) > 1:
            chosen = w.choices("recompute_choice", len(choices), integer=False)
            workspace = Row()
            for column, choice in zip(chosen, choices, strict=True):
                cost.also(int(column), p.cost(choice) - cheapest)
                workspace.also(int(column), grouped.scale.units(choice.workspace_bytes))
            columns.recompute_workspace[g, i] = workspace
            one = Row({int(c): 1.0 for c in chosen}).also(int(columns.recompute[g, i]), -1.0)
            w.equal("recompute_choice", one)
    for spent in columns.spent:
        w.objective.plus(spent)
    return columns


def _cost_of_encoded(w: RowWriter, grouped: GroupedProblem, forward: ForwardColumns, f: ForwardOperator) -> None:
    """An encoded result that is kept has been computed in the forward pass; its bytes there are ignored."""
    if forward.stored[f.id] >= 0:
        p = grouped.problem
        saving = min(0.0, p.in_place_cost(f.in_place)) if f.in_place is not None else 0.0
        cheapest = min(p.cost(c) for c in f.implementations)
        cost = Row({int(forward.stored[f.id]): max(0.0, cheapest + saving)})
        forward.costs[f.id] = cost, 0.0
        w.objective.plus(cost)


def recompute_dependencies(w: RowWriter, grouped: GroupedProblem, c: Columns) -> None:
    """Add (R1): inputs of what is recomputed are there or recomputed too."""
    for g, j in zip(*(map(int, places) for places in np.nonzero(c.recompute >= 0)), strict=True):
        f = grouped.problem.forward[j]
        for i in f.inputs:
            w.at_most("dependency", term(c.recompute, g, j).plus(c.available(g, i), -1.0), 0.0)
        if f.encodes is not None:
            parent = term(c.recompute, g, f.encodes)
            w.at_most("encoded", term(c.recompute, g, j).plus(parent, -1.0), 0.0)


def storage_continuity(w: RowWriter, grouped: GroupedProblem, c: Columns) -> None:
    """Add (R2): only what is there can be carried on."""
    for g in range(len(grouped.groups) - 1):
        for i in map(int, np.flatnonzero(c.stored[g + 1] >= 0)):
            w.at_most("carry", c.later(g, i).plus(c.available(g, i), -1.0), 0.0)


def backward_dependencies(w: RowWriter, grouped: GroupedProblem, c: Columns) -> BackwardColumns:
    """Add (R3): each backward operator uses one implementation, whose needs are there."""
    backward = single_backward_implementation(w, grouped.problem)
    for g, (a, b) in enumerate(grouped.groups):
        for k in range(a, b + 1):
            for i in grouped.wanted(k):
                w.at_most("need", Row(backward.needs[k, i]).plus(c.available(g, i), -1.0), 0.0)
    return backward


def group_start_memory(w: RowWriter, grouped: GroupedProblem, c: Columns, links: LinkColumns | None, g: int) -> None:
    """Add (R6): what stands in memory when a group starts."""
    a, _ = grouped.groups[g]
    row = Row({int(column): grouped.sizes[i] for i, column in enumerate(c.stored[g]) if column >= 0})
    row.plus(on_the_way(grouped, links, g, a))
    w.fits("group_start", row, grouped.problem.gradient_bytes(a))


def backward_memory(
    w: RowWriter, grouped: GroupedProblem, c: Columns, backward: BackwardColumns, links: LinkColumns | None, g: int
) -> None:
    """Add (R7) to (R9): backward operators, with what must be there next to their own needs. From the group's last
    stage to its first. ``lasting`` holds the column of w for each result that some later stage of the group wants:
    before the last stage, each w is at least the one after it. ``standing`` is what they take."""
    a, b = grouped.groups[g]
    sizes = grouped.sizes
    carried = [i for i in range(grouped.count) if c.later(g, i)]
    lasting: dict[int, int] = {}
    standing = Row()

    for k in range(b, a - 1, -1):
        w.look_at_the_clock()
        operator = grouped.problem.backward[k - 1]
        wanted = grouped.wanted(k)
        only_carried = [i for i in carried if i not in wanted] if k == b else []
        row = on_the_way(grouped, links, g, k).plus(standing)
        for i in only_carried:
            row.plus(c.later(g, i), sizes[i])
        for i in wanted:
            present = w.share("present")
            w.at_most("present", Row(backward.needs[k, i]).also(present, -1.0), 0.0)
            if k == b and c.later(g, i):
                w.at_most("present", c.later(g, i).also(present, -1.0), 0.0)
            elif i in lasting:
                w.at_most("present", Row({lasting[i]: 1.0, present: -1.0}), 0.0)
                row.less(lasting[i], sizes[i])
            row.also(present, sizes[i])
        for column, choice in zip(backward.choices[k - 1], operator.implementations, strict=True):
            row.also(int(column), grouped.scale.units(choice.workspace_bytes))
        w.fits("backward", row, operator.live_bytes + operator.fixed_bytes + operator.output_bytes)
        if k == a:
            break
        for i in (*wanted, *only_carried):
            column = w.share("lasting")
            if i in wanted:
                not_made_again(w, c, "lasting", g, i, backward.needs[k, i], column)
            if i in lasting:
                w.at_most("lasting", Row({lasting[i]: 1.0, column: -1.0}), 0.0)
                standing.less(lasting[i], sizes[i])
            elif c.later(g, i):
                not_made_again(w, c, "lasting", g, i, c.later(g, i), column)
            lasting[i] = column
            standing.also(column, sizes[i])
        if len(standing) > LONG:
            total = w.amount("standing_bytes")
            w.at_most("standing_bytes", standing.also(total, -1.0), 0.0)
            standing = Row({total: 1.0})


def not_made_again(w: RowWriter, c: Columns, name: str, g: int, i: int, wanted: Row, column: int) -> None:
    """Add column >= wanted - (r + f): wanted later and not made again, so there all along."""
    w.at_most(name, Row(wanted).plus(c.made_again(g, i), -1.0).also(column, -1.0), 0.0)


def recompute_memory(
    w: RowWriter, grouped: GroupedProblem, c: Columns, backward: BackwardColumns, links: LinkColumns | None, g: int
) -> None:
    """Add (R10) to (R12): what must be there while j is recomputed in the group."""
    a, b = grouped.groups[g]
    sizes = grouped.sizes
    through = Row() if a == b else _throughout(w, grouped, c, backward, g)
    total = -1
    if through:
        total = w.amount("throughout_bytes")
        row = Row({total: 1.0})
        for i, column in through.items():
            row.also(int(column), -sizes[i])
        w.equal("throughout_bytes", row)
    gradients_bytes = min(grouped.problem.gradient_bytes(k) for k in range(a, b + 1))
    for j in map(int, np.flatnonzero(c.recompute[g] >= 0)):
        w.look_at_the_clock()
        f = grouped.problem.forward[j]
        held_bytes = f.output_bytes + f.live_bytes
        if f.in_place is not None:
            held_bytes += min(0, f.in_place.workspace_delta_bytes)
        row = Row(c.recompute_workspace.get((g, j), {}))
        if not row:
            held_bytes += least_workspace_bytes(f.recompute_implementations)
        row.also(int(c.recompute[g, j]), grouped.scale.units(held_bytes))
        live = set(f.live_inputs)
        if a == b:
            row.plus(on_the_way(grouped, links, g, a))
            for i in range(grouped.count):
                if i > j and c.stored[g, i] >= 0:
                    row.also(int(c.stored[g, i]), sizes[i])
                elif i < j and i not in live:
                    row.plus(c.later(g, i), sizes[i])
        elif through:
            row.also(total)
            for i in live | {j}:
                if i in through:
                    row.also(int(through[i]), -sizes[i])
        w.fits("recompute", row, gradients_bytes)


def _throughout(w: RowWriter, grouped: GroupedProblem, c: Columns, backward: BackwardColumns, g: int) -> Row:
    """Columns of e in (R10), as result -> column."""
    through = Row()
    _, b = grouped.groups[g]
    last = grouped.wanted(b)
    for i in range(grouped.count):
        if i in last or c.later(g, i):
            column = w.share("throughout")
            through[i] = column
            if c.later(g, i):
                not_made_again(w, c, "throughout", g, i, c.later(g, i), column)
            if i in last:
                not_made_again(w, c, "throughout", g, i, backward.needs[b, i], column)
    return through
