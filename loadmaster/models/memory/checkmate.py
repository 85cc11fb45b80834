"""Checkmate, the baseline: when to recompute and what to keep, with fixed implementations and its own memory recursion.

Source: [Checkmate20], equations 1, 2, 3, 5, 7 and 9, on the stages of this kind; compared against in [Shah23], sections
4.5.1 and 4.6.2 (Checkmate-O: every operator runs its fastest implementation).
Nothing runs in place and nothing is encoded, unless a backward operator can do no other.
Where rows cannot be exact to the byte the program relaxes the budget or restricts it, as it is asked to
(:class:`~loadmaster.models.memory.choices.ByteScale`). Neither bounds other plans: it considers few of them.

Sets: stages t = 0..K, forward operators i, j = 0..V-1, DEPS_j inputs of j, USERS_i operators that read i, D_t what
backward t reads, L_j live inputs of j, m_i bytes of result i, c_j workspace, G_t gradients and fixed bytes of stage t,
M the budget.

Variables:
    r[t,i]    ``compute``, binary: i runs in stage t; r[0,i] = 1
    s[t,i]    ``keep[t-1,i]``, binary: i is stored when stage t starts, handed on by stage t-1 (Checkmate's S_{t,i})
    f[t,i,j]  ``free``, binary: i goes once j has run in stage t, for i in DEPS_j or i = j, i not in D_t
    e[t,i]    ``linger``, continuous: i in D_t, not computed in stage t and not in s[t+1], is handed on all the same
    u[t,j]    ``resident``, continuous: bytes while j runs (after the last operator for j = V), without G_t

Minimize the costs of r, which are on its columns, and of the backward operators, a constant (1a)
subject to
(1b)  what is computed finds its inputs: r[t,j] <= s[t,i] + r[t,i] for i in DEPS_j, and r[t,j] <= r[t,i] if j encodes
      i - `recompute_dependencies`
(1c)  only what is there is handed on: s[t+1,i] <= s[t,i] + r[t,i] - `storage_continuity`
(1d)  what backward t reads is there: s[t,i] + r[t,i] >= 1 for i in D_t - `backward_dependencies`
(C.a) what backward t reads from storage is handed on: s[t+1,i] + r[t,i] + e[t,i] >= 1 for i in D_t - `lingering_reads`
(2)   bytes when a stage starts: u[t,0] = sum of m_i (s[t,i] + e[t-1,i]) + m_0 r[t,0] - `stage_start_bytes`
(3)   bytes from operator to operator: u[t,j+1] = u[t,j] + m_{j+1} r[t,j+1] - sum of m_i f[t,i,j] - m_j e[t-1,j] -
      `resident_bytes`
(7b)  what is not in use goes: 1 - f[t,i,j] <= hazards - `free_unless_in_use`
(7c)  what is in use does not: hazards <= H (1 - f[t,i,j]) - `free_only_unused`
(9)   G_t + u[t,j] + c_j r[t,j] <= M; of backward t too - `memory_limit`
(C.b) the same, counting all of L_j while j runs, as the accounting here does - `live_input_memory`

where hazards = (1 - r[t,j]) + s[t+1,i] + sum of r[t,j'] over j' in USERS_i, j' > j, and H is the most that this can be.
Rows (C.a), (C.b) and e are not Checkmate's: without them its answers could break the budget by the checker's
accounting, which charges every live input, also those whose later readers do not run in this stage, and where what a
backward operator reads from storage is stored into the next stage, which holds it until its operators have passed i.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


class Columns:
    """The columns of one program, and the figures that its rows are written from. ``ways``: the fixed implementation of
    every backward operator 1..K; ``needs``: what each reads. ``ids``: the forward operators that run."""

    def __init__(self, b: ProgramBuilder, problem: MemoryProblem, budget_bytes: int, *, relaxes: bool) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.ways = baselines.fastest_backward(problem)
        self.needs = baselines.needs_of(problem, self.ways)
        self.stages, self.count = problem.stage_count, len(problem.forward)
        self.ids = baselines.forward_pass(problem, self.ways)
        self.edges = [(i, j) for j in self.ids for i in problem.forward[j].inputs]
        # Up to three terms an operator add up in u before a row reads it.
        self.scale = ByteScale(problem, budget_bytes, terms=3 * self.count, relaxes=relaxes)
        self.units = np.array([self.scale.units(int(m)) for m in problem.output_bytes])
        self._add(b)

    def _add(self, b: ProgramBuilder) -> None:
        stages, count = self.stages, self.count
        live = Liveness(self.problem, needs=self.needs)
        runs = np.zeros(count, dtype=bool)
        runs[self.ids] = True
        may_compute = live.compute & runs
        may_compute[0] = runs
        fastest = [
            [baselines.fastest_forward(self.problem, i, recompute=r) for i in range(count)] for r in (False, True)
        ]
        cost = np.zeros((stages, count))
        self.workspace = np.zeros((stages, count))
        for i, f in enumerate(self.problem.forward):
            first, again = f.implementations[fastest[0][i]], f.recompute_implementations[fastest[1][i]]
            cost[0, i], cost[1:, i] = self.problem.cost(first), self.problem.cost(again)
            self.workspace[0, i] = self.scale.units(first.workspace_bytes)
            self.workspace[1:, i] = self.scale.units(again.workspace_bytes)
        always = np.zeros((stages, count), dtype=bool)
        always[0] = runs
        self.compute = b.columns("compute", (stages, count), lower=always, upper=may_compute, cost=cost, integer=True)
        self.keep = b.columns("keep", (stages, count), upper=live.keep & runs, integer=True)
        # Every (t, i, j) of ``free``: what j reads or makes, unless backward t still needs it.
        pairs = sorted({*self.edges, *((j, j) for j in self.ids)}, key=lambda p: (p[1], p[0]))
        events = [
            (t, i, j) for t in range(stages) for i, j in pairs if t == 0 or (may_compute[t, j] and not self.read(t, i))
        ]
        self.free_stage, self.freed, self.after = (_ints(e[n] for e in events) for n in range(3))
        self.free = b.columns("free", len(events), upper=1, integer=True)
        read = [(k, i) for k, needs in enumerate(self.needs, start=1) for i in needs]
        self.read_stage, self.read_result = _ints(p[0] for p in read), _ints(p[1] for p in read)
        self.linger = b.columns("linger", len(read), upper=1)
        self.resident = b.columns("resident", (stages, count + 1))
        b.offset = sum(
            self.problem.cost(o.implementations[way]) for o, way in zip(self.problem.backward, self.ways, strict=True)
        )

    def read(self, t: int, i: int) -> bool:
        """Return whether backward t reads result i."""
        return i in self.needs[t - 1]


@dataclass(frozen=True)
class Checkmate:
    """One formulation: its program, whose objective is the checker's, in the problem's unit, and its columns."""

    program: Program
    columns: Columns

    def schedule(self, values: FloatArray) -> Schedule:
        """The schedule of an integral point [columns], without what it does for nothing. It may cost less than the
        point: here a stored result is freed by an operator that runs only, so a stage may run one to be rid of it,
        which the checker does not ask for."""
        c, on = self.columns, values > 0.5
        stages = []
        for t in range(c.stages):
            ran = np.flatnonzero(on[c.compute[t]]).tolist()
            read = c.needs[t - 1] if t > 0 else ()
            keep = {*np.flatnonzero(on[c.keep[t]]).tolist(), *(i for i in read if i not in ran)}
            way = c.ways[t - 1] if t > 0 else None
            stages.append(Stage(baselines.run(c.problem, t, ran), way, tuple(sorted(keep))))
        return without_dead_code(c.problem, Schedule(tuple(stages)))


def formulate(problem: MemoryProblem, budget_bytes: int, *, relaxes: bool = True) -> Checkmate:
    """The formulation under a budget; ``relaxes`` as for :func:`loadmaster.models.memory.monet.formulate`."""
    b = ProgramBuilder()
    c = Columns(b, problem, budget_bytes, relaxes=relaxes)
    recompute_dependencies(b, c)
    storage_continuity(b, c)
    backward_dependencies(b, c)
    lingering_reads(b, c)
    stage_start_bytes(b, c)
    resident_bytes(b, c)
    free_unless_in_use(b, c)
    free_only_unused(b, c)
    memory_limit(b, c)
    live_input_memory(b, c)
    return Checkmate(b.build(), c)


def recompute_dependencies(b: ProgramBuilder, c: Columns) -> None:
    """Add (1b): what is computed finds its inputs."""
    t = np.arange(1, c.stages)[:, None]
    i, j = _ints(e[0] for e in c.edges), _ints(e[1] for e in c.edges)
    row = np.arange(t.size * i.size).reshape(t.size, i.size)
    terms: list[Term] = [
        (row, c.compute[t, j], 1),
        (row, c.compute[t, i], -1),
        (row, c.keep[t - 1, i], -1),
    ]
    b.rows("recompute_dependencies", row.shape, terms, upper=0)
    encoded = [(f.id, f.encodes) for j in c.ids if (f := c.problem.forward[j]).encodes is not None]
    e, parent = _ints(p[0] for p in encoded), _ints(p[1] for p in encoded)
    row = np.arange(t.size * e.size).reshape(t.size, e.size)
    terms = [(row, c.compute[t, e], 1), (row, c.compute[t, parent], -1)]
    b.rows("encoding_with_parent", row.shape, terms, upper=0)


def storage_continuity(b: ProgramBuilder, c: Columns) -> None:
    """Add (1c): only what is there is handed on."""
    row = np.arange(c.keep.size).reshape(c.keep.shape)
    terms: list[Term] = [(row, c.keep, 1), (row, c.compute, -1), (row[1:], c.keep[:-1], -1)]
    b.rows("storage_continuity", row.shape, terms, upper=0)


def backward_dependencies(b: ProgramBuilder, c: Columns) -> None:
    """Add (1d), Checkmate's dependencies of backward nodes: what they read is there."""
    k, i, row = c.read_stage, c.read_result, np.arange(len(c.linger))
    terms: list[Term] = [(row, c.keep[k - 1, i], 1), (row, c.compute[k, i], 1)]
    b.rows("backward_dependencies", len(row), terms, lower=1)


def lingering_reads(b: ProgramBuilder, c: Columns) -> None:
    """Add (C.a): what a backward operator reads from storage is handed on."""
    k, i, row = c.read_stage, c.read_result, np.arange(len(c.linger))
    terms: list[Term] = [(row, c.keep[k, i], 1), (row, c.compute[k, i], 1), (row, c.linger, 1)]
    b.rows("lingering_reads", len(row), terms, lower=1)


def _lingers(c: Columns) -> tuple[IntArray, IntArray, IntArray]:
    """Columns e[t-1,i] with their t and i, but for those of the last stage, which has no next."""
    handed_on = c.read_stage < c.stages - 1
    return c.linger[handed_on], c.read_stage[handed_on] + 1, c.read_result[handed_on]


def stage_start_bytes(b: ProgramBuilder, c: Columns) -> None:
    """Add (2): the bytes when a stage starts."""
    t = np.arange(c.stages)
    linger, after, i = _lingers(c)
    terms: list[Term] = [
        (t, c.resident[:, 0], -1),
        (t, c.compute[:, 0], c.units[0]),
        (t[1:, None], c.keep[:-1], c.units),
        (after, linger, c.units[i]),
    ]
    b.rows("stage_start_bytes", c.stages, terms, lower=0, upper=0)


def resident_bytes(b: ProgramBuilder, c: Columns) -> None:
    """Add (3): the bytes from operator to operator."""
    row = np.arange(c.stages * c.count).reshape(c.stages, c.count)
    linger, after, i = _lingers(c)
    terms: list[Term] = [
        (row, c.resident[:, 1:], -1),
        (row, c.resident[:, :-1], 1),
        (row[:, :-1], c.compute[:, 1:], c.units[1:]),
        (row[c.free_stage, c.after], c.free, -c.units[c.freed]),
        (row[after, i], linger, -c.units[i]),
    ]
    b.rows("resident_bytes", row.shape, terms, lower=0, upper=0)


def _hazards(c: Columns) -> tuple[list[Term], IntArray]:
    """Terms of the hazards of every ``free`` but for its constant 1, and H."""
    t, i, j, row = c.free_stage, c.freed, c.after, np.arange(len(c.free))
    later = [
        (n, r)
        for n, (freed, after) in enumerate(zip(i.tolist(), j.tolist(), strict=True))
        for r in c.problem.consumers[freed]
        if r > after and r in c.ids
    ]
    n, reader = _ints(p[0] for p in later), _ints(p[1] for p in later)
    terms: list[Term] = [
        (row, c.compute[t, j], -1),
        (row, c.keep[t, i], 1),
        (n, c.compute[t[n], reader], 1),
    ]
    return terms, 2 + np.bincount(n, minlength=len(row))


def free_unless_in_use(b: ProgramBuilder, c: Columns) -> None:
    """Add (7b): what is not in use is freed."""
    terms, _ = _hazards(c)
    row = np.arange(len(c.free))
    b.rows("free_unless_in_use", len(row), [*terms, (row, c.free, 1)], lower=0)


def free_only_unused(b: ProgramBuilder, c: Columns) -> None:
    """Add (7c): what is in use is not freed."""
    terms, most = _hazards(c)
    row = np.arange(len(c.free))
    b.rows("free_only_unused", len(row), [*terms, (row, c.free, most)], upper=most - 1)


def _room(c: Columns) -> FloatArray:
    free = [c.budget_bytes - c.problem.gradient_bytes(t) for t in range(c.stages)]
    return np.array([[c.scale.room(f)] for f in free])


def memory_limit(b: ProgramBuilder, c: Columns) -> None:
    """Add (9): bytes fit the budget while forward and backward operators run."""
    shape = (c.stages, c.count)
    row = np.arange(c.stages * c.count).reshape(shape)
    terms: list[Term] = [(row, c.resident[:, :-1], 1), (row, c.compute, c.workspace)]
    b.rows("memory_limit", shape, terms, upper=_room(c))
    room = [
        c.scale.room(
            c.budget_bytes - o.live_bytes - o.fixed_bytes - o.output_bytes - o.implementations[way].workspace_bytes
        )
        for o, way in zip(c.problem.backward, c.ways, strict=True)
    ]
    k = np.arange(c.stages - 1)
    b.rows("backward_memory", len(k), [(k, c.resident[1:, -1], 1)], upper=room)


def live_input_memory(b: ProgramBuilder, c: Columns) -> None:
    """Add (C.b): a live input i is in u as m_i (s[t,i] + r[t,i]) until it is freed; here it counts as m_i r[t,j]."""
    live = [(i, j) for j in c.ids for i in c.problem.forward[j].live_inputs if i in c.ids]
    i, j = _ints(p[0] for p in live), _ints(p[1] for p in live)
    shape = (c.stages, c.count)
    row = np.arange(c.stages * c.count).reshape(shape)
    size = c.units[i]
    sums = np.array([c.scale.units(f.live_bytes) for f in c.problem.forward])
    terms: list[Term] = [
        (row, c.resident[:, :-1], 1),
        (row, c.compute, c.workspace + sums),
        (row[:, j], c.compute[:, i], -size),
        (row[1:, j], c.keep[:-1, i], -size),
    ]
    readers = {n: j[i == n] for n in set(i.tolist())}
    for column, t, freed, after in zip(c.free, c.free_stage, c.freed, c.after, strict=True):
        still = readers.get(int(freed), i[:0])
        still = still[still > after]
        terms.append((row[t, still], np.full(len(still), column), c.units[freed]))
    b.rows("live_input_memory", shape, terms, upper=_room(c))


def _ints(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)
