"""The compact program of partition: one choice for every class, and transport between the choices of a pair.

Sets:
    v       classes of tensors and operators (:mod:`.choices`), s their states
    p       pairs of a class of tensors t and a class of operators o, with costs b_p[s_t, s_o]
    A_p     states of t whose rows of b_p (and of every buffer of the pair) are the same; B_p columns likewise
    n       moments: a worker and an operator while which it is to keep the budget (:mod:`.moments`)
    K       covers: states K_v of some classes that together take more than the budget at a moment

Parameters: a_v[s] cost of a state; M the budget; h_n[v, s] bytes of shares, w_n[p, a, b] bytes of buffers.

Variables:
    y[v, s]     binary: class v has state s
    f[p, a, b]  continuous: 1 if the state of t is in a and that of o in b; not there where that is impossible

Objective: minimize sum a_v[s] y[v, s] + sum b_p[a, b] f[p, a, b].

Constraints:
(T1)  every class has one state: sum_s y[v, s] = 1 - `one_state`
(T2)  what leaves a is what t has there: sum_b f[p, a, b] = sum_(s in a) y[t, s] - `from_tensors`
(T3)  what arrives in b is what o has there: sum_a f[p, a, b] = sum_(s in b) y[o, s] - `to_operators`
(T4)  sum h_n[v, s] y[v, s] + sum w_n[p, a, b] f[p, a, b] <= M for every moment n - `fits_the_budget`
(T5)  sum over v in K, s in K_v of y[v, s] <= |K| - 1 for every cover K - `covered`

Where y is whole, f is, too: (T2) and (T3) leave one cell. So only y need be integer, and the relaxation is that of the
local polytope, with as many flows as there are different costs and not as there are states.

Solvers see (T4) up to a tolerance, which is many bytes of a large budget. The row is a little wider than M, so that no
plan is lost that takes M exactly; what takes more all the same is refused by (T5).

What budget is needed is found by the same rows: with a column z >= 0 that is minimized alone, and z M for M in (T4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.partition.choices import Choices
from loadmaster.models.partition.moments import Moment
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder

Pair = tuple[int, int]
# Of classes, the states of which at least one must be another.
Cover = dict[int, IntArray]

# Of the budget, more than sums are rounded by.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Flow:
    """The transport of one pair.

    Attributes:
        rows, columns: [states] the class of each state.
        cells: (row class, column class) -> column of the program.
        first: (row class, column class) -> a state of each.
    """

    rows: IntArray
    columns: IntArray
    cells: dict[tuple[int, int], int]
    first: dict[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Transport:
    """The program, with the columns of each variable's states."""

    program: Program
    states: tuple[IntArray, ...]
    flows: dict[Pair, Flow]

    def chosen(self, values: FloatArray) -> list[int]:
        """The state of each variable that has the most of a point."""
        return [int(values[columns].argmax()) for columns in self.states]


def formulate(
    choices: Choices,
    moments: Sequence[Moment],
    budget_bytes: int,
    covers: Sequence[Cover] = (),
    *,
    scale: float,
    integer: bool,
    least_memory: bool = False,
) -> Transport:
    """The program, or its relaxation unless ``integer``; costs are divided by ``scale``. With ``least_memory``, it
    minimizes the part of the budget that is needed, and not the costs."""
    b = ProgramBuilder()
    if least_memory:
        scale = math.inf
    states = tuple(
        b.columns(f"y[{v}]", len(costs), upper=1.0, cost=costs / scale, integer=integer)
        for v, costs in enumerate(choices.unary)
    )
    flows = {pair: _flow(b, pair, costs, moments, scale) for pair, costs in choices.pairs.items()}
    one_state(b, states)
    from_tensors(b, states, flows)
    to_operators(b, states, flows)
    needed = b.columns("needed", 1, cost=1.0) if least_memory else None
    fits_the_budget(b, states, flows, moments, budget_bytes, needed)
    covered(b, states, covers)
    return Transport(b.build(), states, flows)


def _flow(b: ProgramBuilder, pair: Pair, costs: FloatArray, moments: Sequence[Moment], scale: float) -> Flow:
    layers = [costs, *(m.buffers[pair] for m in moments if pair in m.buffers)]
    rows = np.unique(np.concatenate(layers, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    columns = np.unique(np.concatenate(layers, axis=0), axis=1, return_inverse=True)[1].reshape(-1)
    first: dict[tuple[int, int], tuple[int, int]] = {}
    _, row_states = np.unique(rows, return_index=True)
    _, column_states = np.unique(columns, return_index=True)
    for r, i in enumerate(row_states.tolist()):
        for c, j in enumerate(column_states.tolist()):
            if np.isfinite(costs[i, j]):
                first[r, c] = (i, j)
    found = b.columns(f"f[{pair}]", len(first), upper=1.0, cost=np.array([costs[ij] for ij in first.values()]) / scale)
    return Flow(rows, columns, dict(zip(first, found.tolist(), strict=True)), first)


def one_state(b: ProgramBuilder, states: Sequence[IntArray]) -> None:
    """Add (T1): every class has one state."""
    terms = [(np.full(len(columns), v), columns, 1.0) for v, columns in enumerate(states)]
    b.rows("one_state", len(states), terms, lower=1.0, upper=1.0)


def from_tensors(b: ProgramBuilder, states: Sequence[IntArray], flows: dict[Pair, Flow]) -> None:
    """Add (T2): what leaves a set of states is what the class of tensors has there."""
    for (t, o), flow in flows.items():
        cells = np.array(list(flow.cells.values()), dtype=np.int64)
        rows = np.array([r for r, _ in flow.cells], dtype=np.int64)
        terms = [(rows, cells, 1.0), (flow.rows, states[t], -1.0)]
        b.rows(f"from_tensors[{t},{o}]", int(flow.rows.max()) + 1, terms, lower=0.0, upper=0.0)


def to_operators(b: ProgramBuilder, states: Sequence[IntArray], flows: dict[Pair, Flow]) -> None:
    """Add (T3): what arrives in a set of states is what the class of operators has there."""
    for (t, o), flow in flows.items():
        cells = np.array(list(flow.cells.values()), dtype=np.int64)
        columns = np.array([c for _, c in flow.cells], dtype=np.int64)
        terms = [(columns, cells, 1.0), (flow.columns, states[o], -1.0)]
        b.rows(f"to_operators[{t},{o}]", int(flow.columns.max()) + 1, terms, lower=0.0, upper=0.0)


def fits_the_budget(
    b: ProgramBuilder,
    states: Sequence[IntArray],
    flows: dict[Pair, Flow],
    moments: Sequence[Moment],
    budget_bytes: int,
    needed: IntArray | None = None,
) -> None:
    """Add (T4), with z M for M where the budget is to be found."""
    rows = b.row_list("fits_the_budget")
    for moment in moments:
        columns: list[int] = []
        weights: list[float] = []
        for v, held in moment.shares.items():
            columns += states[v].tolist()
            weights += (held / budget_bytes).tolist()
        for pair, buffer in moment.buffers.items():
            flow = flows[pair]
            columns += flow.cells.values()
            weights += [buffer[ij] / budget_bytes for ij in flow.first.values()]
        if needed is not None:
            columns += needed.tolist()
            weights.append(-1.0)
        rows.add(columns, weights, upper=1.0 + _ROUNDING if needed is None else 0.0)
    rows.done()


def cover(moment: Moment, chosen: Sequence[int]) -> Cover:
    """States that take at least as much at a moment as those of an assignment that takes too much there. A class that
    makes pairs there has its own state alone."""
    paired = {v for pair in moment.buffers for v in pair}
    found = {v: np.array([chosen[v]]) for v in paired}
    for v, held in moment.shares.items():
        if v not in paired:
            found[v] = np.flatnonzero(held >= held[chosen[v]])
    return found


def covered(b: ProgramBuilder, states: Sequence[IntArray], covers: Sequence[Cover]) -> None:
    """Add (T5): no assignment has a state in every set of a cover."""
    rows = b.row_list("covered")
    for one in covers:
        columns = [column for v, of in one.items() for column in states[v][of].tolist()]
        rows.add(columns, [1.0] * len(columns), upper=len(one) - 1.0)
    rows.done()
