r"""MONeT as published: keep, recompute and choose implementations jointly, exact against the checker.

Source: 003_283bdbbccdcfdb68.txt, sections 4.2.2 and 4.3; memory as :mod:`loadmaster.models.memory.checker` states it.

Sets: stages t = 0..K (0 is the forward pass, k = 1..K recomputes and runs backward k), forward operators i, j = 0..V-1,
N_j inputs of j, I_i implementations of i (undominated ones), \hat I_k and D_k^l those of backward k and what they need,
L_j live inputs of j, m_i bytes of result i, G_t gradients and fixed bytes of stage t, M the budget.

Variables (binary unless said):
    r[t,i]   ``compute``: i runs in stage t; r[0,i] = 1 but for encoded results
    s[t,i]   ``keep``: stage t hands i on to stage t+1 (the seed's s^{k-1} with k = t+1)
    d[t,i,l] ``choice``: with implementation l, where there is more than one
    h[k,l]   ``backward``: backward k uses implementation l
    q[t,i]   ``in_place``: i runs in place; y[t,e] ``encoded_in_place``, continuous: encoded e beside a parent in place
    w[k,i]   ``need``, continuous: i is needed by backward k and not kept; stands for the products h s, see (4.12)
    a[t,j]   ``resident``, continuous: kept and needed bytes just before j = 0..V, so that rows stay short
The seed's p[t,i] (computed and not overwritten) is projected out: s + p >= x becomes s + r >= x and 1 - q >= x.

Minimize the costs of d, h, q and y (and of r where there is one implementation), which lie on the columns (4.9)
subject to
(4.7)   r[t,j] <= s[t-1,i] + r[t,i] for i in N_j, t >= 1 - `compute_from_inputs`
(4.7b)  s[t,i] <= s[t-1,i] + r[t,i] - `keep_what_is_there`
(4.8)   sum of h[k,l] with i in D_k^l <= s[k-1,i] + r[k,i] - `supply_the_backward_pass`
(4.8b)  sum of h[k,l] over l = 1; sum of d[t,i,l] over l = r[t,i] (section 4.2.2) - `choose_one_implementation`
(4.10)  q[t,j] overwriting i excludes s[t,i], h with i in D_t^l, later readers of i in t - `overwrite_once`
(4.11)  q[t,i] <= r[t,i]; y[t,e] = r[t,e] q[t,parent], linear as in section 4.3.4 - `run_in_place`
(4.11b) r[t,e] <= r[t,parent] for encoded e (section 4.4, operator optimizations) - `encode_beside_the_parent`
(4.12)  w[k,i] >= sum of h[k,l] with i in D_k^l - s[k,i] - `count_needs_once`
(4.15)  a[t,0] = sum of m_i s[t-1,i]; a[t,j+1] = a[t,j] + m_j (s[t,j] + w[t,j] - s[t-1,j]) - `hold_before`
(4.14)  G_t + a[t,j] - m_j s[t-1,j] - |L_j kept| + workspace + r[t,j] (m_j + |L_j|) <= M - `hold_while_computing`
(4.16)  a[k,V] + workspace + gradients and fixed bytes of backward k <= M - `hold_backward`

where G_t + a[t,j] <= M for j < V is a bound on the column, workspace is that of d, q, y or h, and |L_j kept| is the sum
of m_i s[t,i] over L_j. With r[t,j] = 0, (4.14) follows from (4.15). Constraint (4.12) is one row for a result, where
section 4.3.4 has three for a product, and no weaker: w is pressed down to max(0, needed - kept), all that they sum to.

Fixed at zero, without losing the optimum (costs are not negative, and less kept takes no more room):
- s[t,i] where neither backward t (see :func:`loadmaster.models.memory.tidy.tidy`) nor anything after t can read i;
- r[t,i], t >= 1, where nothing in t or after it can read i or its encoded results, where i must not be recomputed,
  or where G_t, i with its least workspace, and L_i alone exceed M;
- whatever the caller's ``may_recompute`` leaves out: the program is then a restriction.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.memory.choices import (
    ByteScale,
    Choice,
    backward_choices,
    forward_choices,
    offered_backward,
    offered_forward,
    stand_in,
)
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.tidy import tidy
from loadmaster.models.memory.usefulness import BoolArray, Usefulness, fits_alone
from loadmaster.solvers.program import INFINITY, FloatArray, IntArray, Program, ProgramBuilder

Term = tuple[ArrayLike, ArrayLike, ArrayLike]


def formulate(problem: MemoryProblem, budget_bytes: int, *, may_recompute: BoolArray | None = None) -> Monet:
    """The formulation under a budget.

    Args:
        may_recompute: [stages, V], which recomputations to consider (row 0 is not read); None: all.
    """
    return Monet(problem, budget_bytes, Usefulness(problem, may_recompute=may_recompute))


class Monet:
    """The program and the way back from its points to schedules.

    Attributes:
        program: the arrays; its objective is the checker's, in the problem's unit.
    """

    program: Program

    def __init__(self, problem: MemoryProblem, budget_bytes: int, useful: Usefulness) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self._stages, self._count = problem.stage_count, len(problem.forward)
        self._useful = useful
        self._scale = ByteScale(problem, budget_bytes, terms=self._count + 2)
        self._units = np.array([self._scale.units(int(m)) for m in problem.output_bytes])
        self._builder = ProgramBuilder()
        self._columns()
        self._rows()
        self.program = self._builder.build()
        del self._builder

    @cached_property
    def _choices(self) -> tuple[list[tuple[Choice, ...]], list[tuple[Choice, ...]]]:
        """Undominated implementations of every forward operator, in the forward pass and when recomputed."""
        ids = range(self._count)
        return (
            [forward_choices(self.problem, i, recompute=False) for i in ids],
            [forward_choices(self.problem, i, recompute=True) for i in ids],
        )

    @cached_property
    def _backward_choices(self) -> list[tuple[Choice, ...]]:
        return [backward_choices(self.problem, k) for k in range(1, self._stages)]

    def _columns(self) -> None:
        stages, count, forward = self._stages, self._count, self.problem.forward
        b = self._builder
        always = np.zeros((stages, count), dtype=bool)
        always[0] = [f.encodes is None for f in forward]
        self._may_compute = (self._useful.compute & fits_alone(self.problem, self.budget_bytes)) | always
        # With one implementation its cost is on r itself, else on d.
        cost = np.zeros((stages, count))
        for i in range(count):
            for part, choices in ((slice(0, 1), self._choices[0][i]), (slice(1, None), self._choices[1][i])):
                cost[part, i] = choices[0].cost if len(choices) == 1 else 0.0
        self.compute = b.columns(
            "compute", (stages, count), lower=always, upper=self._may_compute, cost=cost, integer=True
        )
        self.keep = b.columns("keep", (stages, count), upper=self._useful.keep, integer=True)
        picks = [
            (t, i, c)
            for t, i in np.argwhere(self._may_compute).tolist()
            if len(self._choices[min(t, 1)][i]) > 1
            for c in self._choices[min(t, 1)][i]
        ]
        self._pick_stage, self._pick_operator = _ints(p[0] for p in picks), _ints(p[1] for p in picks)
        self._picks = [p[2] for p in picks]
        self.choice = b.columns("choice", len(picks), upper=1, integer=True, cost=[c.cost for c in self._picks])
        self._pick_at = {(t, i, c.index): int(column) for (t, i, c), column in zip(picks, self.choice, strict=True)}
        self.in_place, self._in_place_at = self._in_place_columns("in_place", encoded=False)
        self.encoded_in_place, self._encoded_in_place_at = self._in_place_columns("encoded_in_place", encoded=True)
        ways = [(k, c) for k, choices in enumerate(self._backward_choices, start=1) for c in choices]
        self._ways = ways
        self.backward = b.columns("backward", len(ways), upper=1, integer=True, cost=[c.cost for _, c in ways])
        self._way_at = {(k, c.index): int(column) for (k, c), column in zip(ways, self.backward, strict=True)}
        needs = sorted({(k, i) for k, c in ways for i in c.needs})
        self.need = b.columns("need", len(needs), upper=1)
        self._need_at = {pair: int(column) for pair, column in zip(needs, self.need, strict=True)}
        room = np.repeat(self._room[:, None], count + 1, axis=1)
        # Past the last forward operator only the backward operator runs, and (4.16) holds that.
        room[:, -1] = INFINITY
        self.resident = b.columns("resident", (stages, count + 1), upper=room)

    @cached_property
    def _room(self) -> FloatArray:
        """What stage t may hold beside G_t while it computes forward operators [stages]."""
        return np.array(
            [self._scale.room(self.budget_bytes - self.problem.gradient_bytes(t)) for t in range(self._stages)]
        )

    def _in_place_columns(self, name: str, *, encoded: bool) -> tuple[IntArray, IntArray]:
        """Columns for in-place runs and where they are: [stages, V], -1 where there is none."""
        at = np.full((self._stages, self._count), -1, dtype=np.int64)
        places, cost = [], []
        for i, f in enumerate(self.problem.forward):
            if f.in_place is not None and (f.encodes is not None) == encoded:
                stages = np.flatnonzero(self._may_compute[:, i])
                places.append((stages, i))
                cost += [self.problem.in_place_cost(f.in_place)] * len(stages)
        columns = self._builder.columns(name, len(cost), upper=1, cost=cost, integer=not encoded)
        position = 0
        for stages, i in places:
            at[stages, i] = columns[position : position + len(stages)]
            position += len(stages)
        return columns, at

    def _rows(self) -> None:
        self.compute_from_inputs()
        self.keep_what_is_there()
        self.supply_the_backward_pass()
        self.choose_one_implementation()
        self.overwrite_once()
        self.run_in_place()
        self.encode_beside_the_parent()
        self.count_needs_once()
        self.hold_before()
        self.hold_while_computing()
        self.hold_backward()

    def compute_from_inputs(self) -> None:
        """(4.7)"""
        edges = [(i, f.id) for f in self.problem.forward for i in f.inputs]
        i, j = _ints(e[0] for e in edges), _ints(e[1] for e in edges)
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
        t, i = np.nonzero(self._useful.keep)
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
            columns = [*ways, int(self.keep[k - 1, i]), int(self.compute[k, i])]
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
        k = _ints(k for k, _ in self._ways)
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
        return _ints(-1 if f.encodes is None else f.encodes for f in self.problem.forward)

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
        row = t * count + i
        k, n = _ints(p[0] for p in self._need_at), _ints(p[1] for p in self._need_at)
        terms: list[Term] = [
            (row, self.resident[:, 1:], -1),
            (row, self.resident[:, :-1], 1),
            (row, self.keep, self._units),
            (row[1:], self.keep[:-1], -self._units),
            (k * count + n, self.need, self._units[n]),
        ]
        self._builder.rows("resident", (stages, count), terms, lower=0, upper=0)

    def hold_while_computing(self) -> None:
        """(4.14)"""
        row_of = np.full((self._stages, self._count), -1, dtype=np.int64)
        cells = np.nonzero(self._may_compute)
        row_of[cells] = row = np.arange(len(cells[0]))
        t, j = cells
        scale, forward = self._scale, self.problem.forward
        alone = np.array([scale.units(f.output_bytes + f.live_bytes) for f in forward])
        # A single implementation's workspace is charged with r, more than one's with d.
        single = np.array([[_only_workspace(c) for c in choices] for choices in self._choices])
        charge = alone[j] + single[np.minimum(t, 1), j] / scale.unit_bytes
        live = [(i, f.id) for f in forward for i in f.live_inputs]
        i, reader = _ints(p[0] for p in live), _ints(p[1] for p in live)
        lt, lp = np.nonzero(self._may_compute[:, reader])
        later = np.flatnonzero(t > 0)
        terms: list[Term] = [
            (row, self.resident[t, j], 1),
            (row, self.compute[t, j], charge),
            (later, self.keep[t[later] - 1, j[later]], -self._units[j[later]]),
            (row_of[lt, reader[lp]], self.keep[lt, i[lp]], -self._units[i[lp]]),
            (
                row_of[self._pick_stage, self._pick_operator],
                self.choice,
                [scale.units(c.workspace_bytes) for c in self._picks],
            ),
        ]
        delta = np.array(
            [0.0 if f.in_place is None else scale.units(f.in_place.workspace_delta_bytes) for f in forward]
        )
        for at in (self._in_place_at, self._encoded_in_place_at):
            qt, qi = np.nonzero(at >= 0)
            terms.append((row_of[qt, qi], at[qt, qi], delta[qi]))
        self._builder.rows("hold_while_computing", len(row), terms, upper=self._room[t])

    def hold_backward(self) -> None:
        """(4.16)"""
        stages = self._stages
        k = _ints(k for k, _ in self._ways)
        terms: list[Term] = [
            (np.arange(stages - 1), self.resident[1:, -1], 1),
            (k - 1, self.backward, [self._scale.units(c.workspace_bytes) for _, c in self._ways]),
        ]
        room = [
            self._scale.room(self.budget_bytes - b.live_bytes - b.fixed_bytes - b.output_bytes)
            for b in self.problem.backward
        ]
        self._builder.rows("hold_backward", stages - 1, terms, upper=room)

    def schedule(self, values: FloatArray) -> Schedule:
        """The schedule of an integral point [columns], without what it does for nothing."""
        on = values > 0.5
        picked = {(t, i): index for (t, i, index), column in self._pick_at.items() if on[column]}
        ways = {k: c.index for (k, c), chosen in zip(self._ways, on[self.backward], strict=True) if chosen}
        stages = []
        for t in range(self._stages):
            computes = []
            for i in np.flatnonzero(on[self.compute[t]]).tolist():
                index = picked.get((t, i), self._choices[min(t, 1)][i][0].index)
                computes.append(Compute(i, index, self._runs_in_place(on, t, i)))
            keep = tuple(np.flatnonzero(on[self.keep[t]]).tolist())
            stages.append(Stage(tuple(computes), ways.get(t), keep))
        return tidy(self.problem, Schedule(tuple(stages)))

    def _runs_in_place(self, on: BoolArray, t: int, i: int) -> bool:
        operator = self.problem.forward[i]
        runner = i if operator.encodes is None else operator.encodes
        column = self._in_place_at[t, runner]
        return operator.in_place is not None and column >= 0 and bool(on[column])

    def start(self, schedule: Schedule) -> FloatArray:
        """The point [columns] of a schedule that stays inside the program, to start a solver from.

        Implementations left out as dominated are replaced by ones that dominate them. Feasible if the schedule
        passes the checker and neither computes nor keeps what this program fixes at zero (``tidy`` sees to that).
        """
        values = np.zeros(self.program.column_count)
        for t, stage in enumerate(schedule.stages):
            values[self.keep[t, list(stage.keep)]] = 1.0
            for c in stage.computes:
                values[self.compute[t, c.forward]] = 1.0
                choices = self._choices[min(t, 1)][c.forward]
                if len(choices) > 1:
                    given = offered_forward(self.problem, c.forward, recompute=t > 0)[c.implementation]
                    values[self._pick_at[t, c.forward, stand_in(given, choices).index]] = 1.0
                for at in (self._in_place_at, self._encoded_in_place_at):
                    if c.in_place and at[t, c.forward] >= 0:
                        values[at[t, c.forward]] = 1.0
            if t > 0 and stage.implementation is not None:
                given = offered_backward(self.problem, t)[stage.implementation]
                way = stand_in(given, self._backward_choices[t - 1])
                values[self._way_at[t, way.index]] = 1.0
                for i in way.needs:
                    values[self._need_at[t, i]] = 1.0 - values[self.keep[t, i]]
        self._fill_resident(values)
        return values

    def _fill_resident(self, values: FloatArray) -> None:
        """(4.15), solved for a."""
        kept = self._units * values[self.keep]
        needed = np.zeros_like(kept)
        for (k, i), column in self._need_at.items():
            needed[k, i] = self._units[i] * values[column]
        change = kept + needed
        change[1:] -= kept[:-1]
        values[self.resident[1:, 0]] = kept[:-1].sum(axis=1)
        values[self.resident[:, 1:]] = values[self.resident[:, :1]] + np.cumsum(change, axis=1)


def _only_workspace(choices: tuple[Choice, ...]) -> int:
    return choices[0].workspace_bytes if len(choices) == 1 else 0


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)
