"""Integer program of graph layers: one order, candidate kernels that store all that it needs, and hot rows.

It makes the choices of [Wu24] sections 3.3.2 (order, compaction), 3.3.3 (fusion) and chapter 4 (feature rows); there
they are made by rule, one after the other.

Sets:
    p           orders of the program (:mod:`.orders`)
    c           candidate kernels of an order (:mod:`.candidates`), S_c what they store, R_c what they read of others,
                I_c what they make inline that could be kept, t_c their time
    v           values of an order that kernels store; must_p those that always are
    h           pieces of the curve of hits, n_h rows, g_h microseconds that a row saves (:mod:`.hot_rows`)

Parameters: M the budget; L_p the bytes in memory all the time, and G_p of the gradients that are given; b_v, b_c bytes
of a value, and of all that a kernel reads and stores; r bytes of a feature row.

Variables:
    x[p]        binary: the order is taken
    y[c]        binary: the kernel is taken
    q[v]        continuous: when v is stored; q_max is the number of values
    l[v]        continuous: 1 if v, of the forward pass, is in memory when the backward pass begins
    z[h]        continuous: hot rows of a piece, 0 to n_h

Objective: minimize sum t_c y[c] - sum g_h z[h].

Constraints:
(K1)  one order is taken: sum_p x[p] = 1 - `one_order`
(K2)  what must be stored is, once, and what may be stored at most once: sum_(c: v in S_c) y[c] = x[p], or <= x[p] -
      `stored_once`
(K3)  what a kernel that stores u reads is stored: sum_(c: u in S_c, v in R_c) y[c] <= sum_(d: v in S_d) y[d] -
      `reads_what_is_stored`
(K4)  what is stored is read, never made again: sum_(c: u in S_c, v in I_c) y[c] + sum_(d: v in S_d) y[d] <= x[p] -
      `makes_what_is_not_stored`
(K5)  what is read is stored before: q[u] >= q[v] + 1 - (1 + q_max) (1 - sum_(c: u in S_c, v in R_c) y[c]) -
      `stored_before_read`
(K6)  what one kernel stores is stored at once: |q[u] - q[v]| <= q_max (1 - sum_(c: u, v in S_c) y[c]) -
      `stored_at_once`
(K7)  what the backward pass reads, and what is a result, is in memory when it begins: l[v] >= sum_(c: u in S_c, v in
      R_c) y[c] for u of the backward pass - `waits_for_the_backward_pass`
(K8)  all of this fits: (L_p + G_p) x[p] + sum b_v l[v] + r sum z[h] <= M - `fits_between_the_passes`
(K9)  so does what a kernel reads and stores: L_p x[p] + sum_(c: u in S_c) b_c y[c] + r sum z[h] <= M, with G_p x[p] for
      u of the backward pass - `fits_while_it_runs`

(K5) and (K6) are needed where some kernel stores several values: a program has no circles. Without a budget, (K7) to
(K9) are left out. They count what is in memory in every sequence of the kernels; a given sequence can need more. So the
optimum bounds that of all plans, and a plan is held to the budget when its kernels have been put into sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.graph.candidates import Candidate, Candidates
from loadmaster.models.graph.hot_rows import segments
from loadmaster.models.graph.inline import base
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.residence import lasting_bytes, value_bytes
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder


@dataclass(frozen=True)
class Formulated:
    """Integer program with its columns, x [orders] and y [candidates] of each order; ``scale`` divides costs, us."""

    program: Program
    orders: IntArray
    kernels: tuple[IntArray, ...]
    scale: float

    def chosen(self, values: FloatArray) -> tuple[int, list[int]]:
        """Read a point: the order that it takes, and the numbers of its candidates."""
        order = int(values[self.orders].argmax())
        return order, np.flatnonzero(values[self.kernels[order]] > 0.5).tolist()

    def without(self, order: int, groups: Sequence[Sequence[int]], name: str) -> Formulated:
        """Add a row that forbids sets of kernels with one of every group; of a group no two can be taken."""
        coefficients = np.zeros(self.program.column_count)
        for group in groups:
            coefficients[self.kernels[order][list(group)]] += 1.0
        program = self.program.with_row(name, coefficients, upper=len(groups) - 1.0)
        return Formulated(program, self.orders, self.kernels, self.scale)


def formulate(problem: GraphProblem, of: Sequence[Candidates], budget_bytes: int | None, scale: float) -> Formulated:
    """Build the integer program of a graph problem, without (K7) to (K9) if there is no budget; costs are divided by
    ``scale``, microseconds."""
    b = ProgramBuilder()
    taken = b.columns("x", len(of), upper=1.0, integer=True)
    one_order(b, taken)
    hot = [(rows, saved) for rows, saved in segments(problem) if saved > 0]
    row_bytes = 0 if problem.store is None else problem.store.row_bytes
    # In rows that would fill the budget: columns of one size.
    z = b.columns("z", len(hot), upper=1.0, cost=[-rows * saved / scale for rows, saved in hot])
    kernels = []
    for p, candidates in enumerate(of):
        times = np.array([c.time_us for c in candidates.found])
        y = b.columns(f"y[{p}]", len(times), upper=1.0, cost=times / scale, integer=True)
        kernels.append(y)
        made = _Order(b, candidates, int(taken[p]), y, f"[{p}]")
        stored_once(made)
        reads_what_is_stored(made)
        makes_what_is_not_stored(made)
        q = b.columns(f"q[{p}]", len(made.values), upper=float(len(made.values)))
        stored_before_read(made, q)
        stored_at_once(made, q)
        if budget_bytes is not None:
            fit = _Fit(problem, made, budget_bytes, [int(c) for c in z], [rows * row_bytes for rows, _ in hot])
            fits_between_the_passes(fit, waits_for_the_backward_pass(fit))
            fits_while_it_runs(fit)
    return Formulated(b.build(), taken, tuple(kernels), scale)


class _Order:
    """Columns of one order, by what its candidates store, read and make inline."""

    def __init__(self, b: ProgramBuilder, of: Candidates, taken: int, y: IntArray, name: str) -> None:
        self.b, self.of, self.taken, self.name = b, of, taken, name
        self.values = sorted(of.must | of.may)
        self.place = {v: at for at, v in enumerate(self.values)}
        self.storing: dict[int, list[int]] = {v: [] for v in self.values}
        self.reading: dict[tuple[int, int], list[int]] = {}
        self.inlining: dict[tuple[int, int], list[int]] = {}
        self.together: dict[tuple[int, int], list[int]] = {}
        self.column_of: list[tuple[int, Candidate]] = list(zip(y.tolist(), of.found, strict=True))
        for column, candidate in self.column_of:
            stores = sorted(candidate.kernel.stores)
            for at, u in enumerate(stores):
                self.storing[u].append(column)
                for v in candidate.reads:
                    self.reading.setdefault((u, v), []).append(column)
                for v in candidate.inline:
                    self.inlining.setdefault((u, v), []).append(column)
                for v in stores[at + 1 :]:
                    self.together.setdefault((u, v), []).append(column)


def one_order(b: ProgramBuilder, taken: IntArray) -> None:
    """Add (K1): one order is taken."""
    b.rows("one_order", 1, [(0, taken, 1.0)], lower=1.0, upper=1.0)


def stored_once(of: _Order) -> None:
    """Add (K2): values are stored at most once, those that must be exactly once."""
    rows = of.b.row_list(f"stored_once{of.name}")
    for v, columns in of.storing.items():
        terms = [1.0] * len(columns)
        rows.add([*columns, of.taken], [*terms, -1.0], lower=0.0 if v in of.of.must else -np.inf, upper=0.0)
    rows.done()


def reads_what_is_stored(of: _Order) -> None:
    """Add (K3): a value that a taken kernel reads is stored."""
    rows = of.b.row_list(f"reads_what_is_stored{of.name}")
    for (_, v), columns in of.reading.items():
        if v in of.of.may:
            weights = dict.fromkeys(columns, 1.0)
            for column in of.storing[v]:
                weights[column] = weights.get(column, 0.0) - 1.0
            rows.add([*weights], [*weights.values()], upper=0.0)
    rows.done()


def makes_what_is_not_stored(of: _Order) -> None:
    """Add (K4): a value that is stored is not made inline."""
    rows = of.b.row_list(f"makes_what_is_not_stored{of.name}")
    for (_, v), columns in of.inlining.items():
        all_columns = [*columns, *of.storing[v]]
        rows.add([*all_columns, of.taken], [*[1.0] * len(all_columns), -1.0], upper=0.0)
    rows.done()


def stored_before_read(of: _Order, q: IntArray) -> None:
    """Add (K5): a value is stored before it is read."""
    rows = of.b.row_list(f"stored_before_read{of.name}")
    most = float(len(of.values))
    for (u, v), columns in of.reading.items():
        if of.together:
            ends = [int(q[of.place[u]]), int(q[of.place[v]])]
            rows.add([*ends, *columns], [1.0, -1.0, *[-1.0 - most] * len(columns)], lower=-most)
    rows.done()


def stored_at_once(of: _Order, q: IntArray) -> None:
    """Add (K6): values of one kernel are stored at once."""
    rows = of.b.row_list(f"stored_at_once{of.name}")
    most = float(len(of.values))
    for (u, v), columns in of.together.items():
        for first, last in ((u, v), (v, u)):
            ends = [int(q[of.place[first]]), int(q[of.place[last]])]
            rows.add([*ends, *columns], [1.0, -1.0, *[most] * len(columns)], upper=most)
    rows.done()


def least_at_once(problem: GraphProblem, of: Candidates) -> int:
    """Least bytes in memory while some kernel runs, whichever kernels are taken: (K9) value by value."""
    program = of.program
    lasting = lasting_bytes(problem, program)
    gradients = sum(value_bytes(problem, program, n) for n in program.given("gradient").values())
    sizes: dict[int, int] = {}
    for candidate in of.found:
        size = sum(value_bytes(problem, program, v) for v in {*candidate.kernel.stores, *candidate.reads})
        for n in candidate.kernel.stores:
            sizes[n] = min(sizes.get(n, size), size)
    return lasting + max(sizes[n] + gradients * (n >= program.forward_count) for n in of.must)


@dataclass(frozen=True)
class _Fit:
    """Coefficients of the memory rows: bytes as shares of the budget."""

    problem: GraphProblem
    of: _Order
    budget_bytes: int
    hot: list[int]
    hot_bytes: list[int]

    def share(self, v: int) -> float:
        return value_bytes(self.problem, self.of.of.program, v) / self.budget_bytes

    def always(self, *, backward: bool) -> Iterator[tuple[int, float]]:
        """Terms of what is in memory all the time, or all the backward pass, and of hot rows: (column, share)."""
        program = self.of.of.program
        yield self.of.taken, lasting_bytes(self.problem, program) / self.budget_bytes
        if backward:
            yield self.of.taken, sum(self.share(n) for n in program.given("gradient").values())
        for column, size in zip(self.hot, self.hot_bytes, strict=True):
            yield column, size / self.budget_bytes


def waits_for_the_backward_pass(fit: _Fit) -> dict[int, int]:
    """Add (K7): what the backward pass waits for is in memory; return the column of l by value."""
    program, of = fit.of.of.program, fit.of
    results = {base(program, n) for n in program.results}
    waiting = [v for v in of.values if v < program.forward_count]
    columns = of.b.columns(f"l{of.name}", len(waiting), upper=1.0)
    found = dict(zip(waiting, columns.tolist(), strict=True))
    rows = of.b.row_list(f"waits_for_the_backward_pass{of.name}")
    for (u, v), readers in of.reading.items():
        if u >= program.forward_count and v in found:
            rows.add([*readers, found[v]], [1.0] * len(readers) + [-1.0], upper=0.0)
    for v in results & set(waiting):
        rows.add([of.taken, found[v]], [1.0, -1.0], upper=0.0)
    rows.done()
    return found


def fits_between_the_passes(fit: _Fit, waiting: dict[int, int]) -> None:
    """Add (K8): what is in memory between the passes fits into the budget."""
    columns, shares = zip(
        *fit.always(backward=True), *((column, fit.share(v)) for v, column in waiting.items()), strict=True
    )
    rows = fit.of.b.row_list(f"fits_between_the_passes{fit.of.name}")
    rows.add([*columns], [*shares], upper=1.0)
    rows.done()


def fits_while_it_runs(fit: _Fit) -> None:
    """Add (K9): what is in memory while a kernel runs fits into the budget."""
    rows = fit.of.b.row_list(f"fits_while_it_runs{fit.of.name}")
    shares = {
        column: sum(fit.share(v) for v in {*candidate.kernel.stores, *candidate.reads})
        for column, candidate in fit.of.column_of
    }
    for u, storing in fit.of.storing.items():
        always = fit.always(backward=u >= fit.of.of.program.forward_count)
        rows.add(*map(list, zip(*always, *((column, shares[column]) for column in storing), strict=True)), upper=1.0)
    rows.done()
