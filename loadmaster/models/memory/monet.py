r"""MONeT as published: keep, recompute and choose implementations jointly, exact against the checker.

Source: [Shah23], sections 4.2.2 and 4.3; memory as :mod:`loadmaster.models.memory.checker` states it.

Sets: stages t = 0..K (0 is the forward pass, k = 1..K recomputes and runs backward k), forward operators i, j = 0..V-1,
N_j inputs of j, I_i implementations of i (undominated ones), \hat I_k and D_k^l those of backward k and what they need,
L_j live inputs of j, m_i bytes of result i, G_t gradients and fixed bytes of stage t, M the budget.

Variables (binary unless said):
    r[t,i]   ``compute``: i runs in stage t; r[0,i] = 1 but for encoded results
    s[t,i]   ``keep``: stage t hands i on to stage t+1 (s^{k-1} of [Shah23], k = t+1)
    d[t,i,l] ``choice``: with implementation l, where there is more than one
    h[k,l]   ``backward``: backward k uses implementation l
    q[t,i]   ``in_place``: i runs in place; y[t,e] ``encoded_in_place``, continuous: encoded e beside a parent in place
    w[k,i]   ``need``, continuous: backward k needs i, computed beside it and not kept; for the products h s, see (4.12)
    a[t,j]   ``resident``, continuous: stored, kept and needed bytes just before j, so that rows stay short
    z[b,i]   ``again``, continuous: i is recomputed in stage b or later
The seed's p[t,i] (computed and not overwritten) is projected out: s + p >= x becomes s + r >= x and 1 - q >= x.

Minimize the costs of d, h, q and y (and of r where there is one implementation), which lie on the columns (4.9)
subject to
(4.7)   r[t,j] <= s[t-1,i] + r[t,i] for i in N_j, t >= 1 - `compute_from_inputs`
(4.7b)  s[t,i] <= s[t-1,i] + r[t,i] - `keep_what_is_there`
(4.8)   sum of h[k,l] with i in D_k^l <= s[k,i] + r[k,i] - `supply_the_backward_pass`
(4.8b)  sum of h[k,l] over l = 1; sum of d[t,i,l] over l = r[t,i] (section 4.2.2) - `choose_one_implementation`
(4.10)  q[t,j] overwriting i excludes s[t,i], h with i in D_t^l, later readers of i in t - `overwrite_once`
(4.11)  q[t,i] <= r[t,i]; y[t,e] = r[t,e] q[t,parent], linear as in section 4.3.4 - `run_in_place`
(4.11b) r[t,e] <= r[t,parent] for encoded e (section 4.4, operator optimizations) - `encode_beside_the_parent`
(4.12)  w[k,i] >= sum of h[k,l] with i in D_k^l - s[k,i] - `count_needs_once`
(4.15)  a[t,0] = sum of m_i s[t-1,i]; a[t,j+1] = a[t,j] + m_j (s[t,j] + w[t,j] - s[t-1,j]) - `hold_before`
(4.14)  G_t + a[t,j] - m_j s[t-1,j] - |L_j kept| + workspace + r[t,j] (m_j + |L_j|) <= M - `hold_while_computing`
(4.1)   the same for t = 0, where r = 1 - `hold_forward`
(4.16)  sum of m_i (s[k,i] + w[k,i]) + workspace + gradients and fixed bytes of backward k <= M - `hold_backward`

and, for a few boundaries b in B, rows that no schedule violates and that draw the linear relaxation towards the optimum
(of a result recomputed in small parts over many stages, the inputs would otherwise be recomputed in one such part):
(B)     z[b,i] <= sum of r[t,i] over t >= b; z[b,j] <= s[b-1,i] + z[b,i] for i in N_j; z[b,e] <= z[b,parent];
        h[k,l] with i in D_k^l, k >= b, and s[c-1,i], c in B, c > b, <= s[b-1,i] + z[b,i] - `recompute_as_a_whole`

where G_t + a[t,j] <= M is a bound on the column, workspace is that of d, q, y or h, and |L_j kept| is the sum
of m_i s[t,i] over L_j. With r[t,j] = 0, (4.14) follows from (4.15). Constraint (4.12) is one row for a result, where
section 4.3.4 has three for a product, and no weaker: w is pressed down to max(0, needed - kept), all that they sum to.

Fixed at zero, without losing the optimum (costs are not negative, and less kept takes no more room):
- s[t,i] where neither backward t nor anything after t can read i;
- r[t,i], t >= 1, where nothing in t or after it can read i or its encoded results, where i must not be recomputed,
  or where G_t, i with its least workspace, and L_i alone exceed M;
- w[k,i] where r[k,i] is: by (4.8), what backward k then needs is kept;
- whatever the caller's ``may_recompute`` leaves out: the program is then a restriction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.memory.choices import Choice
from loadmaster.models.memory.liveness import BoolArray, Liveness
from loadmaster.models.memory.monet_columns import MonetColumns, ints
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray

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
        boundaries: the stages B, any of 1..K; None: about eight, evenly spread. More of them bring the
            linear relaxation closer to the optimum, and make it slower.
    """
    if boundaries is None:
        boundaries = range(1, problem.stage_count, max(1, round((problem.stage_count - 1) / _BOUNDARIES)))
    return Monet(problem, budget_bytes, Liveness(problem, may_recompute=may_recompute), boundaries)


class Monet(MonetColumns):
    """The program and the way back from its points to schedules.

    Attributes:
        program: the arrays; its objective is the checker's, in the problem's unit.
    """

    def __init__(self, problem: MemoryProblem, budget_bytes: int, live: Liveness, boundaries: Sequence[int]) -> None:
        super().__init__(problem, budget_bytes, live, boundaries)
        self.compute_from_inputs()
        self.keep_what_is_there()
        self.supply_the_backward_pass()
        self.choose_one_implementation()
        self.overwrite_once()
        self.run_in_place()
        self.encode_beside_the_parent()
        self.count_needs_once()
        self.hold_forward()
        self.hold_before()
        self.hold_while_computing()
        self.hold_backward()
        for row, first in enumerate(self._boundaries):
            self.recompute_as_a_whole(first, self.again[row])
        self.program = self._builder.build()
        del self._builder

    def compute_from_inputs(self) -> None:
        """(4.7)"""
        edges = [(i, f.id) for f in self.problem.forward for i in f.inputs]
        i, j = ints(e[0] for e in edges), ints(e[1] for e in edges)
        t, e = np.nonzero(self._may_compute[1:, j])
        t, row = t + 1, np.arange(len(t))
        terms: list[Term] = [
            (row, self.compute[t, j[e]], 1),
            (row, self.keep[t - 1, i[e]], -1),
            (row, self.compute[t, i[e]], -1),
        ]
        self._builder.rows("compute_from_inputs", len(t), terms, upper=0)

    def keep_what_is_there(self) -> None:
        """(4.7b)"""
        t, i = np.nonzero(self._live.keep)
        later = np.flatnonzero(t > 0)
        row = np.arange(len(t))
        terms: list[Term] = [
            (row, self.keep[t, i], 1),
            (row, self.compute[t, i], -1),
            (later, self.keep[t[later] - 1, i[later]], -1),
        ]
        self._builder.rows("keep_what_is_there", len(t), terms, upper=0)

    def supply_the_backward_pass(self) -> None:
        """(4.8)"""
        rows = self._builder.row_list("supply_the_backward_pass")
        for (k, i), ways in self._ways_that_need.items():
            columns = [*ways, int(self.keep[k, i]), int(self.compute[k, i])]
            rows.add(columns, [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
        rows.done()

    @cached_property
    def _ways_that_need(self) -> dict[tuple[int, int], list[int]]:
        """For every backward operator k and result i that it may read, the columns of the choices that read it."""
        found: dict[tuple[int, int], list[int]] = {pair: [] for pair in self._need_at}
        for (k, c), column in zip(self._ways, self.backward, strict=True):
            for i in c.needs:
                found[k, i].append(int(column))
        return found

    def choose_one_implementation(self) -> None:
        """(4.8b)"""
        k = ints(k for k, _ in self._ways)
        self._builder.rows("choose_backward", self._stages - 1, [(k - 1, self.backward, 1)], lower=1, upper=1)
        cell = self._pick_stage * self._count + self._pick_operator
        used, row = np.unique(cell, return_inverse=True)
        terms: list[Term] = [(row, self.choice, 1), (np.arange(len(used)), self.compute.ravel()[used], -1)]
        self._builder.rows("choose_forward", len(used), terms, lower=0, upper=0)

    def overwrite_once(self) -> None:
        """(4.10), and no later reader of the overwritten result in the stage."""
        rows = self._builder.row_list("overwrite_once")
        for j, f in enumerate(self.problem.forward):
            if f.in_place is None or f.encodes is not None:
                continue
            i = f.in_place.overwrites
            readers = [r for r in self.problem.consumers[i] if r > j]
            for t in np.flatnonzero(self._in_place_at[:, j] >= 0).tolist():
                q = int(self._in_place_at[t, j])
                for other in (self.keep[t, i], *(self.compute[t, r] for r in readers)):
                    rows.add([q, int(other)], [1.0, 1.0], upper=1.0)
                ways = self._ways_that_need.get((t, i), [])
                if ways:
                    rows.add([q, *ways], [1.0] * (1 + len(ways)), upper=1.0)
        rows.done()

    def run_in_place(self) -> None:
        """(4.11)"""
        t, i = np.nonzero(self._in_place_at >= 0)
        row = np.arange(len(t))
        terms: list[Term] = [(row, self._in_place_at[t, i], 1), (row, self.compute[t, i], -1)]
        self._builder.rows("in_place_if_computed", len(t), terms, upper=0)
        t, e = np.nonzero(self._encoded_in_place_at >= 0)
        row = np.arange(len(t))
        y, r, q = self._encoded_in_place_at[t, e], self.compute[t, e], self._in_place_at[t, self._parents[e]]
        self._builder.rows("encoded_if_computed", len(t), [(row, y, 1), (row, r, -1)], upper=0)
        self._builder.rows("encoded_if_in_place", len(t), [(row, y, 1), (row, q, -1)], upper=0)
        self._builder.rows("encoded_if_both", len(t), [(row, y, 1), (row, r, -1), (row, q, -1)], lower=-1)

    @cached_property
    def _parents(self) -> IntArray:
        return ints(-1 if f.encodes is None else f.encodes for f in self.problem.forward)

    def encode_beside_the_parent(self) -> None:
        """(4.11b)"""
        e = np.flatnonzero(self._parents >= 0)
        t, position = np.nonzero(self._may_compute[:, e])
        e, row = e[position], np.arange(len(t))
        terms: list[Term] = [(row, self.compute[t, e], 1), (row, self.compute[t, self._parents[e]], -1)]
        self._builder.rows("encode_beside_the_parent", len(t), terms, upper=0)

    def count_needs_once(self) -> None:
        """(4.12), linear"""
        rows = self._builder.row_list("count_needs_once")
        for (k, i), ways in self._ways_that_need.items():
            columns = [*ways, int(self.keep[k, i]), self._need_at[k, i]]
            rows.add(columns, [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
        rows.done()

    def hold_before(self) -> None:
        """(4.15)"""
        stages, count = self._stages, self._count
        t, i = np.indices((stages, count))
        carried: list[Term] = [(np.arange(stages), self.resident[:, 0], -1), (t[1:], self.keep[:-1], self._units)]
        self._builder.rows("carried", stages, carried, lower=0, upper=0)
        t, i = t[:, :-1], i[:, :-1]
        row = t * (count - 1) + i
        k, n = ints(p[0] for p in self._need_at), ints(p[1] for p in self._need_at)
        before_last = n < count - 1
        k, n, need = k[before_last], n[before_last], self.need[before_last]
        terms: list[Term] = [
            (row, self.resident[:, 1:], -1),
            (row, self.resident[:, :-1], 1),
            (row, self.keep[:, :-1], self._units[:-1]),
            (row[1:], self.keep[:-1, :-1], -self._units[:-1]),
            (k * (count - 1) + n, need, self._units[n]),
        ]
        self._builder.rows("resident", (stages, count - 1), terms, lower=0, upper=0)

    def hold_while_computing(self) -> None:
        """(4.14)"""
        cells = self._may_compute.copy()
        cells[0, self._parents < 0] = False
        row_of = np.full(cells.shape, -1, dtype=np.int64)
        t, j = np.nonzero(cells)
        row_of[t, j] = row = np.arange(len(t))
        scale, forward = self._scale, self.problem.forward
        # A single implementation's workspace is charged with r, that of several with d.
        single = np.array([[_only_workspace(c) for c in choices] for choices in self._choices])
        alone = (
            np.array([f.output_bytes + f.live_bytes for f in forward])[j] + single[np.minimum(t, 1), j]
        ) / scale.unit_bytes
        live = [(i, f.id) for f in forward for i in f.live_inputs]
        i, reader = ints(p[0] for p in live), ints(p[1] for p in live)
        lt, lp = np.nonzero(cells[:, reader])
        later = np.flatnonzero(t > 0)
        terms: list[Term] = [
            (row, self.resident[t, j], 1),
            (row, self.compute[t, j], alone),
            (later, self.keep[t[later] - 1, j[later]], -self._units[j[later]]),
            (row_of[lt, reader[lp]], self.keep[lt, i[lp]], -self._units[i[lp]]),
        ]
        picked = np.flatnonzero(cells[self._pick_stage, self._pick_operator])
        space = np.array([scale.units(c.workspace_bytes) for c in self._picks])
        at_pick = row_of[self._pick_stage[picked], self._pick_operator[picked]]
        terms.append((at_pick, self.choice[picked], space[picked]))
        for at in (self._in_place_at, self._encoded_in_place_at):
            qt, qi = np.nonzero((at >= 0) & cells)
            terms.append((row_of[qt, qi], at[qt, qi], self._in_place_units[qi]))
        self._builder.rows("hold_while_computing", len(row), terms, upper=self._room[t])

    @cached_property
    def _in_place_units(self) -> FloatArray:
        """Workspace that running in place adds [V], in units."""
        deltas = [0 if f.in_place is None else f.in_place.workspace_delta_bytes for f in self.problem.forward]
        return np.array([self._scale.units(d) for d in deltas])

    def hold_forward(self) -> None:
        """(4.1): r is 1, so that (4.14) is a row of keep alone, from which solvers cut better."""
        rows = self._builder.row_list("hold_forward")
        gradients = self.problem.gradient_bytes(0)
        for j, f in enumerate(self.problem.forward):
            if f.encodes is not None:
                continue
            kept = [i for i in range(j) if i not in f.live_inputs]
            columns, values = [int(c) for c in self.keep[0, kept]], self._units[kept].tolist()
            choices = self._choices[0][j]
            if len(choices) > 1:
                columns += [self._pick_at[0, j, c.index] for c in choices]
                values += [self._scale.units(c.workspace_bytes) for c in choices]
            if self._in_place_at[0, j] >= 0:
                columns.append(int(self._in_place_at[0, j]))
                values.append(float(self._in_place_units[j]))
            alone = gradients + f.output_bytes + f.live_bytes + _only_workspace(choices)
            rows.add(columns, values, upper=self._scale.room(self.budget_bytes - alone))
        rows.done()

    def hold_backward(self) -> None:
        """(4.16), with (4.12)"""
        stages = self._stages
        k, way = ints(k for k, _ in self._ways), [self._scale.units(c.workspace_bytes) for _, c in self._ways]
        needing, needed = ints(p[0] for p in self._need_at), ints(p[1] for p in self._need_at)
        terms: list[Term] = [
            (np.arange(stages - 1)[:, None], self.keep[1:], self._units),
            (needing - 1, self.need, self._units[needed]),
            (k - 1, self.backward, way),
        ]
        room = [
            self._scale.room(self.budget_bytes - b.live_bytes - b.fixed_bytes - b.output_bytes)
            for b in self.problem.backward
        ]
        self._builder.rows("hold_backward", stages - 1, terms, upper=room)

    def recompute_as_a_whole(self, first: int, again: IntArray) -> None:
        """(B) for one boundary b = ``first``; ``again`` are its z [V]."""
        b, every = self._builder, np.arange(self._count)
        stored = self.keep[first - 1]
        t, i = np.nonzero(self._may_compute[first:])
        b.rows("again_if_ever", self._count, [(every, again, 1), (i, self.compute[t + first, i], -1)], upper=0)
        edges = [(i, f.id) for f in self.problem.forward for i in f.inputs]
        i, j = ints(e[0] for e in edges), ints(e[1] for e in edges)
        row = np.arange(len(edges))
        inputs: list[Term] = [(row, again[j], 1), (row, again[i], -1), (row, stored[i], -1)]
        b.rows("again_from_inputs", len(edges), inputs, upper=0)
        e = np.flatnonzero(self._parents >= 0)
        row = np.arange(len(e))
        b.rows("again_beside_the_parent", len(e), [(row, again[e], 1), (row, again[self._parents[e]], -1)], upper=0)
        supply = b.row_list("again_for_backward")
        for (k, n), ways in self._ways_that_need.items():
            if k >= first:
                supply.add([*ways, int(stored[n]), int(again[n])], [1.0] * len(ways) + [-1.0, -1.0], upper=0.0)
        supply.done()
        for later in self._boundaries:
            if later > first:
                carried: list[Term] = [(every, self.keep[later - 1], 1), (every, stored, -1), (every, again, -1)]
                b.rows("again_to_be_stored_later", self._count, carried, upper=0)


def _only_workspace(choices: tuple[Choice, ...]) -> int:
    return choices[0].workspace_bytes if len(choices) == 1 else 0
