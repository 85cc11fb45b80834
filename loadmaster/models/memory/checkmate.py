"""Checkmate, the baseline: when to recompute and what to keep, with fixed implementations and its own memory recursion.

Source: Jain et al., Checkmate (2020), equations 1, 2, 3, 5 and 7, on the stages of this kind; compared against in
[Shah23], sections 4.5.1 and 4.6.2 (Checkmate-O: every operator runs its fastest implementation).
Nothing runs in place and nothing is encoded, unless a backward operator can do no other.

Sets: stages t = 0..K, forward operators i, j = 0..V-1, DEPS_j inputs of j, USERS_i operators that read i, D_t what
backward t reads, L_j live inputs of j, m_i bytes of result i, c_j workspace, G_t gradients and fixed bytes of stage t,
M the budget.

Variables:
    r[t,i]    ``compute``, binary: i runs in stage t; r[0,i] = 1
    s[t,i]    ``keep``, binary: stage t hands i on to stage t+1 (Checkmate's S_{t+1,i})
    f[t,i,j]  ``free``, binary: i goes once j has run in stage t, for i in DEPS_j or i = j, i not in D_t
    e[t,i]    ``linger``, continuous: i in D_t, not computed in stage t and not in s[t], is handed on all the same
    u[t,j]    ``resident``, continuous: bytes while j runs (after the last operator for j = V), without G_t

Minimize the costs of r, which lie on its columns, and of the backward operators, a constant (1a)
subject to
(1b) r[t,j] <= s[t-1,i] + r[t,i] for i in DEPS_j, and r[t,j] <= r[t,i] if j encodes i - `compute_from_inputs`
(1c) s[t,i] <= s[t-1,i] + r[t,i] - `keep_what_is_there`
(1d) s[t-1,i] + r[t,i] >= 1 for i in D_t - `supply_the_backward_pass`
(1e) s[t,i] + r[t,i] + e[t,i] >= 1 for i in D_t - `keep_what_is_read`
(2)  u[t,0] = sum of m_i (s[t-1,i] + e[t-1,i]) + m_0 r[t,0] - `start_stages`
(3)  u[t,j+1] = u[t,j] + m_{j+1} r[t,j+1] - sum of m_i f[t,i,j] - m_j e[t-1,j] - `run_and_free`
(7b) 1 - f[t,i,j] <= hazards - `free_what_is_unused`
(7c) hazards <= H (1 - f[t,i,j]) - `free_nothing_in_use`
(9)  G_t + u[t,j] + c_j r[t,j] <= M; of backward t too - `hold`
(9b) the same, counting all of L_j while j runs, as the accounting here does - `hold_live_inputs`

where hazards = (1 - r[t,j]) + s[t,i] + sum of r[t,j'] over j' in USERS_i, j' > j, and H is the most that this can be.
Rows (9b), (1e) and e are not Checkmate's: without them its answers could break the budget by the checker's accounting,
which charges every live input, also those whose later readers do not run in this stage, and where what a backward
operator reads from storage is stored into the next stage, which holds it until its operators have passed i.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from loadmaster.models.memory import baselines
from loadmaster.models.memory.choices import ByteScale
from loadmaster.models.memory.dead_code import without_dead_code
from loadmaster.models.memory.liveness import Liveness
from loadmaster.models.memory.plan import Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder

Term = tuple[ArrayLike, ArrayLike, ArrayLike]


def formulate(problem: MemoryProblem, budget_bytes: int) -> Checkmate:
    """The formulation under a budget."""
    return Checkmate(problem, budget_bytes)


class Checkmate:
    """The program and the way back from its points to schedules.

    Attributes:
        program: the arrays; its objective is the checker's, in the problem's unit.
        ways: the fixed implementation of every backward operator 1..K.
    """

    program: Program

    def __init__(self, problem: MemoryProblem, budget_bytes: int) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.ways = baselines.fastest_backward(problem)
        self._needs = baselines.needs_of(problem, self.ways)
        self._stages, self._count = problem.stage_count, len(problem.forward)
        self._ids = baselines.forward_pass(problem, self.ways)
        self._edges = [(i, j) for j in self._ids for i in problem.forward[j].inputs]
        # Up to three terms an operator add up in u before a row reads it.
        self._scale = ByteScale(problem, budget_bytes, terms=3 * self._count)
        self._units = np.array([self._scale.units(int(m)) for m in problem.output_bytes])
        self._builder = ProgramBuilder()
        self._columns()
        self._rows()
        self.program = self._builder.build()
        del self._builder

    def _columns(self) -> None:
        stages, count, b = self._stages, self._count, self._builder
        live = Liveness(self.problem, needs=self._needs)
        runs = np.zeros(count, dtype=bool)
        runs[self._ids] = True
        may_compute = live.compute & runs
        may_compute[0] = runs
        fastest = [
            [baselines.fastest_forward(self.problem, i, recompute=r) for i in range(count)] for r in (False, True)
        ]
        cost = np.zeros((stages, count))
        self._workspace = np.zeros((stages, count))
        for i, f in enumerate(self.problem.forward):
            first, again = f.implementations[fastest[0][i]], f.recompute_implementations[fastest[1][i]]
            cost[0, i], cost[1:, i] = self.problem.cost(first), self.problem.cost(again)
            self._workspace[0, i] = self._scale.units(first.workspace_bytes)
            self._workspace[1:, i] = self._scale.units(again.workspace_bytes)
        always = np.zeros((stages, count), dtype=bool)
        always[0] = runs
        self.compute = b.columns("compute", (stages, count), lower=always, upper=may_compute, cost=cost, integer=True)
        self.keep = b.columns("keep", (stages, count), upper=live.keep & runs, integer=True)
        # Every (t, i, j) of ``free``: what j reads or makes, unless backward t still needs it.
        pairs = sorted({*self._edges, *((j, j) for j in self._ids)}, key=lambda p: (p[1], p[0]))
        events = [
            (t, i, j) for t in range(stages) for i, j in pairs if t == 0 or (may_compute[t, j] and not self._read(t, i))
        ]
        self._free_stage, self._freed, self._after = (_ints(e[n] for e in events) for n in range(3))
        self.free = b.columns("free", len(events), upper=1, integer=True)
        read = [(k, i) for k, needs in enumerate(self._needs, start=1) for i in needs]
        self._read_stage, self._read_result = _ints(p[0] for p in read), _ints(p[1] for p in read)
        self.linger = b.columns("linger", len(read), upper=1)
        self.resident = b.columns("resident", (stages, count + 1))
        b.offset = sum(
            self.problem.cost(o.implementations[way]) for o, way in zip(self.problem.backward, self.ways, strict=True)
        )

    def _read(self, t: int, i: int) -> bool:
        return i in self._needs[t - 1]

    def _rows(self) -> None:
        self.compute_from_inputs()
        self.keep_what_is_there()
        self.supply_the_backward_pass()
        self.keep_what_is_read()
        self.start_stages()
        self.run_and_free()
        self.free_what_is_unused()
        self.free_nothing_in_use()
        self.hold()
        self.hold_live_inputs()

    def compute_from_inputs(self) -> None:
        """(1b)"""
        t = np.arange(1, self._stages)[:, None]
        i, j = _ints(e[0] for e in self._edges), _ints(e[1] for e in self._edges)
        row = np.arange(t.size * i.size).reshape(t.size, i.size)
        terms: list[Term] = [
            (row, self.compute[t, j], 1),
            (row, self.compute[t, i], -1),
            (row, self.keep[t - 1, i], -1),
        ]
        self._builder.rows("compute_from_inputs", row.shape, terms, upper=0)
        encoded = [(f.id, f.encodes) for j in self._ids if (f := self.problem.forward[j]).encodes is not None]
        e, parent = _ints(p[0] for p in encoded), _ints(p[1] for p in encoded)
        row = np.arange(t.size * e.size).reshape(t.size, e.size)
        terms = [(row, self.compute[t, e], 1), (row, self.compute[t, parent], -1)]
        self._builder.rows("encode_beside_the_parent", row.shape, terms, upper=0)

    def keep_what_is_there(self) -> None:
        """(1c)"""
        row = np.arange(self.keep.size).reshape(self.keep.shape)
        terms: list[Term] = [(row, self.keep, 1), (row, self.compute, -1), (row[1:], self.keep[:-1], -1)]
        self._builder.rows("keep_what_is_there", row.shape, terms, upper=0)

    def supply_the_backward_pass(self) -> None:
        """(1d), Checkmate's dependencies of backward nodes"""
        k, i, row = self._read_stage, self._read_result, np.arange(len(self.linger))
        terms: list[Term] = [(row, self.keep[k - 1, i], 1), (row, self.compute[k, i], 1)]
        self._builder.rows("supply_the_backward_pass", len(row), terms, lower=1)

    def keep_what_is_read(self) -> None:
        """(1e)"""
        k, i, row = self._read_stage, self._read_result, np.arange(len(self.linger))
        terms: list[Term] = [(row, self.keep[k, i], 1), (row, self.compute[k, i], 1), (row, self.linger, 1)]
        self._builder.rows("keep_what_is_read", len(row), terms, lower=1)

    def _lingers(self) -> tuple[IntArray, IntArray, IntArray]:
        """Columns e[t-1,i] with their t and i, but for those of the last stage, which has no next."""
        handed_on = self._read_stage < self._stages - 1
        return self.linger[handed_on], self._read_stage[handed_on] + 1, self._read_result[handed_on]

    def start_stages(self) -> None:
        """(2)"""
        t = np.arange(self._stages)
        linger, after, i = self._lingers()
        terms: list[Term] = [
            (t, self.resident[:, 0], -1),
            (t, self.compute[:, 0], self._units[0]),
            (t[1:, None], self.keep[:-1], self._units),
            (after, linger, self._units[i]),
        ]
        self._builder.rows("start_stages", self._stages, terms, lower=0, upper=0)

    def run_and_free(self) -> None:
        """(3)"""
        row = np.arange(self._stages * self._count).reshape(self._stages, self._count)
        linger, after, i = self._lingers()
        terms: list[Term] = [
            (row, self.resident[:, 1:], -1),
            (row, self.resident[:, :-1], 1),
            (row[:, :-1], self.compute[:, 1:], self._units[1:]),
            (row[self._free_stage, self._after], self.free, -self._units[self._freed]),
            (row[after, i], linger, -self._units[i]),
        ]
        self._builder.rows("run_and_free", row.shape, terms, lower=0, upper=0)

    def _hazards(self) -> tuple[list[Term], IntArray]:
        """Terms of the hazards of every ``free`` but for its constant 1, and H."""
        t, i, j, row = self._free_stage, self._freed, self._after, np.arange(len(self.free))
        later = [
            (n, r)
            for n, (freed, after) in enumerate(zip(i.tolist(), j.tolist(), strict=True))
            for r in self.problem.consumers[freed]
            if r > after and r in self._runs
        ]
        n, reader = _ints(p[0] for p in later), _ints(p[1] for p in later)
        terms: list[Term] = [
            (row, self.compute[t, j], -1),
            (row, self.keep[t, i], 1),
            (n, self.compute[t[n], reader], 1),
        ]
        return terms, 2 + np.bincount(n, minlength=len(row))

    @property
    def _runs(self) -> frozenset[int]:
        return frozenset(self._ids)

    def free_what_is_unused(self) -> None:
        """(7b)"""
        terms, _ = self._hazards()
        row = np.arange(len(self.free))
        self._builder.rows("free_what_is_unused", len(row), [*terms, (row, self.free, 1)], lower=0)

    def free_nothing_in_use(self) -> None:
        """(7c)"""
        terms, most = self._hazards()
        row = np.arange(len(self.free))
        self._builder.rows("free_nothing_in_use", len(row), [*terms, (row, self.free, most)], upper=most - 1)

    def _room(self) -> FloatArray:
        free = [self.budget_bytes - self.problem.gradient_bytes(t) for t in range(self._stages)]
        return np.array([[self._scale.room(f)] for f in free])

    def hold(self) -> None:
        """(9)"""
        shape = (self._stages, self._count)
        row = np.arange(self._stages * self._count).reshape(shape)
        terms: list[Term] = [(row, self.resident[:, :-1], 1), (row, self.compute, self._workspace)]
        self._builder.rows("hold", shape, terms, upper=self._room())
        room = [
            self._scale.room(
                self.budget_bytes
                - b.live_bytes
                - b.fixed_bytes
                - b.output_bytes
                - b.implementations[way].workspace_bytes
            )
            for b, way in zip(self.problem.backward, self.ways, strict=True)
        ]
        k = np.arange(self._stages - 1)
        self._builder.rows("hold_backward", len(k), [(k, self.resident[1:, -1], 1)], upper=room)

    def hold_live_inputs(self) -> None:
        """(9b): a live input i is in u as m_i (s[t-1,i] + r[t,i]) until it is freed; here it counts as m_i r[t,j]."""
        live = [(i, j) for j in self._ids for i in self.problem.forward[j].live_inputs if i in self._runs]
        i, j = _ints(p[0] for p in live), _ints(p[1] for p in live)
        shape = (self._stages, self._count)
        row = np.arange(self._stages * self._count).reshape(shape)
        size = self._units[i]
        sums = np.array([self._scale.units(f.live_bytes) for f in self.problem.forward])
        terms: list[Term] = [
            (row, self.resident[:, :-1], 1),
            (row, self.compute, self._workspace + sums),
            (row[:, j], self.compute[:, i], -size),
            (row[1:, j], self.keep[:-1, i], -size),
        ]
        readers = {n: j[i == n] for n in set(i.tolist())}
        for column, t, freed, after in zip(self.free, self._free_stage, self._freed, self._after, strict=True):
            still = readers.get(int(freed), i[:0])
            still = still[still > after]
            terms.append((row[t, still], np.full(len(still), column), self._units[freed]))
        self._builder.rows("hold_live_inputs", shape, terms, upper=self._room())

    def schedule(self, values: FloatArray) -> Schedule:
        """The schedule of an integral point [columns], without what it does for nothing.

        It may cost less than the point: here a stored result is freed by an operator that runs only, so a stage may
        run one to be rid of it, which the checker does not ask for.
        """
        on = values > 0.5
        stages = []
        for t in range(self._stages):
            ran = np.flatnonzero(on[self.compute[t]]).tolist()
            read = self._needs[t - 1] if t > 0 else ()
            keep = {*np.flatnonzero(on[self.keep[t]]).tolist(), *(i for i in read if i not in ran)}
            way = self.ways[t - 1] if t > 0 else None
            stages.append(Stage(baselines.run(self.problem, t, ran), way, tuple(sorted(keep))))
        return without_dead_code(self.problem, Schedule(tuple(stages)))


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)
