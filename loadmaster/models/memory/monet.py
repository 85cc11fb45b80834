r"""MONeT as published: keep, recompute and choose implementations jointly, exact against the checker.

Rows are exact to the byte where they can be (:class:`~loadmaster.models.memory.choices.ByteScale`). Elsewhere the
program is a relaxation by about a millionth of the budget: its bound and its verdict are proofs, and a point may take
some bytes too many. :meth:`~loadmaster.models.memory.monet_points.Monet.cover` cuts such a point off, and all others
that take as much for the same reason. Solved again until the checker passes its point, the program is exact.

Source: [Shah23] sections 4.2.2 and 4.3; memory as :mod:`loadmaster.models.memory.checker` states it.

Sets: stages t = 0..K (0 is the forward pass, k = 1..K recomputes and runs backward k), forward operators i, j = 0..V-1,
N_j inputs of j, I_i implementations of i (undominated ones), \hat I_k and D_k^l those of backward k and what they need,
L_j live inputs of j, m_i bytes of result i, G_t gradients and fixed bytes of stage t, M the budget.

Variables (binary unless said):
    r[t,i]   ``compute``: i runs in stage t; r[0,i] = 1 but for encoded results
    s[t,i]   ``keep[t-1,i]``: i is stored when stage t starts, handed on by stage t-1 (in the source s_i^{k-1}, for
             what stage k hands on: here s[k+1,i])
    d[t,i,l] ``choice``: with implementation l, where there is more than one
    h[k,l]   ``backward``: backward k uses implementation l
    q[t,i]   ``in_place``: i runs in place; y[t,e] ``encoded_in_place``, continuous: encoded e with a parent in place
    w[k,i]   ``need``, continuous: backward k needs i, computed with it and not kept; for the products h s, see (M.d)
    a[t,j]   ``resident``, continuous: stored, kept and needed bytes just before j, so that rows stay short
    z[b,i]   ``again``, continuous: i is recomputed in stage b or later
The source's p[t,i] (computed and not overwritten) is projected out: s + p >= x becomes s + r >= x and 1 - q >= x.

Minimize the costs of d, h, q and y (and of r where there is one implementation), which are on the columns (4.9)
subject to, numbered as in the source where the rows are its own,
(4.7)  what is computed finds its inputs: r[t,j] <= s[t,i] + r[t,i] for i in N_j (for t = 0, where most r are 1, of an
       encoded i) - `recompute_dependencies`;
       only what is there is handed on: s[t+1,i] <= s[t,i] + r[t,i] - `storage_continuity`
(4.8)  what backward k needs is kept or computed: sum of h[k,l] with i in D_k^l <= s[k+1,i] + r[k,i] -
       `backward_dependencies`
(M.a)  one implementation each: sum of h[k,l] over l = 1; sum of d[t,i,l] over l = r[t,i] (section 4.2.2) -
       `single_implementation`
(4.10) running j in place loses what it overwrites, i: q[t,j] excludes s[t+1,i], h with i in D_t^l, and later readers of
       i in t - `in_place_overwrite`
(4.11) only what is computed runs in place: q[t,i] <= r[t,i] - `in_place_computation`
(M.b)  an encoded result runs in place with its parent: y[t,e] = r[t,e] q[t,parent], linear as in section 4.3.4 -
       `in_place_computation`
(M.c)  an encoded result is computed with its parent: r[t,e] <= r[t,parent] (section 4.4, operator optimizations) -
       `encoding_with_parent`
(M.d)  a need that is not kept takes room of its own: w[k,i] >= sum of h[k,l] with i in D_k^l - s[k+1,i] -
       `unkept_needs`
(4.15) bytes from result to result: a[t,0] = sum of m_i s[t,i]; a[t,j+1] = a[t,j] + m_j (s[t+1,j] + w[t,j] - s[t,j]);
       G_t + a[t,j] <= M is a bound on the column - `resident_bytes`
(4.14) while j is computed: G_t + a[t,j] - m_j s[t,j] - |L_j kept| + workspace + r[t,j] (m_j + |L_j|) <= M -
       `recompute_memory`
(4.1)  the same for t = 0, where r = 1 - `forward_memory`
(4.12) while backward k runs: sum of m_i (s[k+1,i] + w[k,i]) + workspace + its gradients and fixed bytes <= M -
       `backward_memory`

and, for a few boundaries b in B, rows that no schedule violates and that draw the linear relaxation towards the optimum
(of a result recomputed in small parts over many stages, the inputs would otherwise be recomputed in one such part):
(M.e)  z[b,i] <= sum of r[t,i] over t >= b; z[b,j] <= s[b,i] + z[b,i] for i in N_j; z[b,e] <= z[b,parent];
       h[k,l] with i in D_k^l, k >= b, and s[c,i], c in B, c > b, <= s[b,i] + z[b,i] - `recompute_from_boundary`

where all sums of bytes are at most M by (4.16), workspace is that of d, q, y or h, and |L_j kept| is the sum of
m_i s[t+1,i] over L_j. With r[t,j] = 0, (4.14) follows from (4.15). Constraint (M.d) is one row for a result, where
section 4.3.4 has three for a product, and no weaker: w is pressed down to max(0, needed - kept), all that they sum to.

Fixed at zero, without losing the optimum (costs are not negative, and less kept takes no more room):
- s[t+1,i] where neither backward t nor anything after t can read i;
- r[t,i], t >= 1, where nothing in t or after it can read i or its encoded results, where i must not be recomputed,
  or where G_t, i with its least workspace, and L_i alone exceed M;
- w[k,i] where r[k,i] is: by (4.8), what backward k then needs is kept;
- whatever the caller's ``may_recompute`` leaves out: the program is then a restriction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.memory.choices import Choice
from loadmaster.models.memory.liveness import BoolArray, Liveness
from loadmaster.models.memory.monet_columns import MonetColumns, ints
from loadmaster.models.memory.monet_points import Monet
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import IntArray, ProgramBuilder

Term = tuple[ArrayLike, ArrayLike, ArrayLike]
# Boundaries of the strengthening rows unless the caller says which.
_BOUNDARIES = 8


def formulate(
    problem: MemoryProblem,
    budget_bytes: int,
    *,
    may_recompute: BoolArray | None = None,
    boundaries: Sequence[int] | None = None,
) -> Monet:
    """The formulation under a budget.

    Args:
        may_recompute: [stages, V], which recomputations to consider (row 0 is not read); None: all.
        boundaries: the stages B, any of 1..K; None: about eight, evenly spread. More of them bring the linear
            relaxation closer to the optimum, and make it slower.
    """
    if boundaries is None:
        boundaries = range(1, problem.stage_count, max(1, round((problem.stage_count - 1) / _BOUNDARIES)))
    b = ProgramBuilder()
    live = Liveness(problem, may_recompute=may_recompute)
    c = MonetColumns(b, problem, budget_bytes, live, boundaries)
    recompute_dependencies(b, c)
    storage_continuity(b, c)
    backward_dependencies(b, c)
    single_implementation(b, c)
    in_place_overwrite(b, c)
    in_place_computation(b, c)
    encoding_with_parent(b, c)
    unkept_needs(b, c)
    forward_memory(b, c)
    resident_bytes(b, c)
    recompute_memory(b, c)
    backward_memory(b, c)
    for row, first in enumerate(c.boundaries):
        recompute_from_boundary(b, c, first, c.again[row])
    return Monet(b.build(), c)


def recompute_dependencies(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.7): what is computed finds its inputs stored or computed."""
    edges = [(i, f.id) for f in c.problem.forward for i in f.inputs]
    i, j = ints(e[0] for e in edges), ints(e[1] for e in edges)
    t, e = np.nonzero(c.may_compute[1:, j])
    t, row = t + 1, np.arange(len(t))
    terms: list[Term] = [
        (row, c.compute[t, j[e]], 1),
        (row, c.keep[t - 1, i[e]], -1),
        (row, c.compute[t, i[e]], -1),
    ]
    b.rows("recompute_dependencies", len(t), terms, upper=0)
    encoded = np.flatnonzero(c.parents[i] >= 0)
    row = np.arange(len(encoded))
    terms = [(row, c.compute[0, j[encoded]], 1), (row, c.compute[0, i[encoded]], -1)]
    b.rows("forward_dependencies", len(encoded), terms, upper=0)


def storage_continuity(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.7): only what is stored or computed is handed on."""
    t, i = np.nonzero(c.live.keep)
    later = np.flatnonzero(t > 0)
    row = np.arange(len(t))
    terms: list[Term] = [
        (row, c.keep[t, i], 1),
        (row, c.compute[t, i], -1),
        (later, c.keep[t[later] - 1, i[later]], -1),
    ]
    b.rows("storage_continuity", len(t), terms, upper=0)


def backward_dependencies(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.8): what the chosen backward implementation reads is kept or computed."""
    rows = b.row_list("backward_dependencies")
    for (k, i), ways in c.ways_that_need.items():
        columns = [*ways, int(c.keep[k, i]), int(c.compute[k, i])]
        rows.add(columns, [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
    rows.done()


def single_implementation(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (M.a): one implementation of every operator that runs."""
    k = ints(k for k, _ in c.ways)
    b.rows("choose_backward", c.stages - 1, [(k - 1, c.backward, 1)], lower=1, upper=1)
    cell = c.pick_stage * c.count + c.pick_operator
    used, row = np.unique(cell, return_inverse=True)
    terms: list[Term] = [(row, c.choice, 1), (np.arange(len(used)), c.compute.ravel()[used], -1)]
    b.rows("choose_forward", len(used), terms, lower=0, upper=0)


def in_place_overwrite(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.10): what is overwritten is not kept, nor read later in the stage."""
    rows = b.row_list("in_place_overwrite")
    for j, f in enumerate(c.problem.forward):
        if f.in_place is None or f.encodes is not None:
            continue
        i = f.in_place.overwrites
        readers = [r for r in c.problem.consumers[i] if r > j]
        for t in np.flatnonzero(c.in_place_at[:, j] >= 0).tolist():
            q = int(c.in_place_at[t, j])
            for other in (c.keep[t, i], *(c.compute[t, r] for r in readers)):
                rows.add([q, int(other)], [1.0, 1.0], upper=1.0)
            ways = c.ways_that_need.get((t, i), [])
            if ways:
                rows.add([q, *ways], [1.0] * (1 + len(ways)), upper=1.0)
    rows.done()


def in_place_computation(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.11) and (M.b): only what is computed runs in place, and an encoded result with its parent."""
    t, i = np.nonzero(c.in_place_at >= 0)
    row = np.arange(len(t))
    terms: list[Term] = [(row, c.in_place_at[t, i], 1), (row, c.compute[t, i], -1)]
    b.rows("in_place_if_computed", len(t), terms, upper=0)
    t, e = np.nonzero(c.encoded_in_place_at >= 0)
    row = np.arange(len(t))
    y, r, q = c.encoded_in_place_at[t, e], c.compute[t, e], c.in_place_at[t, c.parents[e]]
    b.rows("encoded_if_computed", len(t), [(row, y, 1), (row, r, -1)], upper=0)
    b.rows("encoded_if_in_place", len(t), [(row, y, 1), (row, q, -1)], upper=0)
    b.rows("encoded_if_both", len(t), [(row, y, 1), (row, r, -1), (row, q, -1)], lower=-1)


def encoding_with_parent(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (M.c): an encoded result is computed with its parent."""
    e = np.flatnonzero(c.parents >= 0)
    t, position = np.nonzero(c.may_compute[:, e])
    e, row = e[position], np.arange(len(t))
    terms: list[Term] = [(row, c.compute[t, e], 1), (row, c.compute[t, c.parents[e]], -1)]
    b.rows("encoding_with_parent", len(t), terms, upper=0)


def unkept_needs(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (M.d): a need that is not kept takes room of its own."""
    rows = b.row_list("unkept_needs")
    for (k, i), ways in c.ways_that_need.items():
        columns = [*ways, int(c.keep[k, i]), c.need_at[k, i]]
        rows.add(columns, [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
    rows.done()


def resident_bytes(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.15): the bytes just before each operator, from one to the next."""
    stages, count = c.stages, c.count
    t, i = np.indices((stages, count))
    carried: list[Term] = [(np.arange(stages), c.resident[:, 0], -1), (t[1:], c.keep[:-1], c.units)]
    b.rows("carried", stages, carried, lower=0, upper=0)
    t, i = t[:, :-1], i[:, :-1]
    row = t * (count - 1) + i
    k, n = ints(p[0] for p in c.need_at), ints(p[1] for p in c.need_at)
    before_last = n < count - 1
    k, n, need = k[before_last], n[before_last], c.need[before_last]
    terms: list[Term] = [
        (row, c.resident[:, 1:], -1),
        (row, c.resident[:, :-1], 1),
        (row, c.keep[:, :-1], c.units[:-1]),
        (row[1:], c.keep[:-1, :-1], -c.units[:-1]),
        (k * (count - 1) + n, need, c.units[n]),
    ]
    b.rows("resident", (stages, count - 1), terms, lower=0, upper=0)


def recompute_memory(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.14): the bytes while an operator is computed."""
    cells = c.may_compute.copy()
    cells[0, c.parents < 0] = False
    row_of = np.full(cells.shape, -1, dtype=np.int64)
    t, j = np.nonzero(cells)
    row_of[t, j] = row = np.arange(len(t))
    scale, forward = c.scale, c.problem.forward
    # A single implementation's workspace is charged with r, that of several with d.
    single = np.array([[_only_workspace(offered) for offered in choices] for choices in c.choices])
    alone = (
        np.array([f.output_bytes + f.live_bytes for f in forward])[j] + single[np.minimum(t, 1), j]
    ) / scale.unit_bytes
    live = [(i, f.id) for f in forward for i in f.live_inputs]
    i, reader = ints(p[0] for p in live), ints(p[1] for p in live)
    lt, lp = np.nonzero(cells[:, reader])
    later = np.flatnonzero(t > 0)
    terms: list[Term] = [
        (row, c.resident[t, j], 1),
        (row, c.compute[t, j], alone),
        (later, c.keep[t[later] - 1, j[later]], -c.units[j[later]]),
        (row_of[lt, reader[lp]], c.keep[lt, i[lp]], -c.units[i[lp]]),
    ]
    picked = np.flatnonzero(cells[c.pick_stage, c.pick_operator])
    space = np.array([scale.units(pick.workspace_bytes) for pick in c.picks])
    at_pick = row_of[c.pick_stage[picked], c.pick_operator[picked]]
    terms.append((at_pick, c.choice[picked], space[picked]))
    for at in (c.in_place_at, c.encoded_in_place_at):
        qt, qi = np.nonzero((at >= 0) & cells)
        terms.append((row_of[qt, qi], at[qt, qi], c.in_place_units[qi]))
    b.rows("recompute_memory", len(row), terms, upper=c.room[t])


def forward_memory(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.1): the bytes while the forward pass runs. With r = 1 it is a row of keep alone: solvers cut better."""
    rows = b.row_list("forward_memory")
    gradients = c.problem.gradient_bytes(0)
    for j, f in enumerate(c.problem.forward):
        if f.encodes is not None:
            continue
        kept = [i for i in range(j) if i not in f.live_inputs]
        columns, values = [int(column) for column in c.keep[0, kept]], c.units[kept].tolist()
        choices = c.choices[0][j]
        if len(choices) > 1:
            columns += [c.pick_at[0, j, choice.index] for choice in choices]
            values += [c.scale.units(choice.workspace_bytes) for choice in choices]
        if c.in_place_at[0, j] >= 0:
            columns.append(int(c.in_place_at[0, j]))
            values.append(float(c.in_place_units[j]))
        alone = gradients + f.output_bytes + f.live_bytes + _only_workspace(choices)
        rows.add(columns, values, upper=c.scale.room(c.budget_bytes - alone))
    rows.done()


def backward_memory(b: ProgramBuilder, c: MonetColumns) -> None:
    """Add (4.12): the bytes while a backward operator runs."""
    stages = c.stages
    k, way = ints(k for k, _ in c.ways), [c.scale.units(choice.workspace_bytes) for _, choice in c.ways]
    needing, needed = ints(p[0] for p in c.need_at), ints(p[1] for p in c.need_at)
    terms: list[Term] = [
        (np.arange(stages - 1)[:, None], c.keep[1:], c.units),
        (needing - 1, c.need, c.units[needed]),
        (k - 1, c.backward, way),
    ]
    room = [c.scale.room(c.budget_bytes - o.live_bytes - o.fixed_bytes - o.output_bytes) for o in c.problem.backward]
    b.rows("backward_memory", stages - 1, terms, upper=room)


def recompute_from_boundary(b: ProgramBuilder, c: MonetColumns, first: int, again: IntArray) -> None:
    """Add (M.e) for one boundary b = ``first``; ``again`` are its z [V]."""
    every = np.arange(c.count)
    stored = c.keep[first - 1]
    t, i = np.nonzero(c.may_compute[first:])
    b.rows("again_if_ever", c.count, [(every, again, 1), (i, c.compute[t + first, i], -1)], upper=0)
    edges = [(i, f.id) for f in c.problem.forward for i in f.inputs]
    i, j = ints(e[0] for e in edges), ints(e[1] for e in edges)
    row = np.arange(len(edges))
    inputs: list[Term] = [(row, again[j], 1), (row, again[i], -1), (row, stored[i], -1)]
    b.rows("again_from_inputs", len(edges), inputs, upper=0)
    e = np.flatnonzero(c.parents >= 0)
    row = np.arange(len(e))
    b.rows("again_beside_the_parent", len(e), [(row, again[e], 1), (row, again[c.parents[e]], -1)], upper=0)
    supply = b.row_list("again_for_backward")
    for (k, n), ways in c.ways_that_need.items():
        if k >= first:
            supply.add([*ways, int(stored[n]), int(again[n])], [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
    supply.done()
    for later in c.boundaries:
        if later > first:
            carried: list[Term] = [(every, c.keep[later - 1], 1), (every, stored, -1), (every, again, -1)]
            b.rows("again_to_be_stored_later", c.count, carried, upper=0)


def _only_workspace(choices: tuple[Choice, ...]) -> int:
    return choices[0].workspace_bytes if len(choices) == 1 else 0
