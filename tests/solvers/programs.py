"""Programs with known answers, random ones, and an oracle that enumerates."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from loadmaster.solvers.program import Program, ProgramBuilder


def knapsack() -> Program:
    """Best of three items under a weight of 4: the first and the last, worth 8."""
    builder = ProgramBuilder()
    keep = builder.columns("keep", 3, upper=1, integer=True, cost=[-5.0, -4.0, -3.0])
    builder.rows("budget", (), [(0, keep, [2.0, 3.0, 1.0])], upper=4.0)
    return builder.build()


def assignment() -> Program:
    """Three workers, three jobs; the anti-diagonal costs 1 + 2 + 3 = 6 and everything else 9 each."""
    builder = ProgramBuilder()
    cost = np.full((3, 3), 9.0)
    cost[[0, 1, 2], [2, 1, 0]] = [1.0, 2.0, 3.0]
    does = builder.columns("does", (3, 3), upper=1, integer=True, cost=cost)
    one = np.arange(3)[:, None]
    builder.rows("worker", 3, [(one, does, 1.0)], lower=1, upper=1)
    builder.rows("job", 3, [(one, does.T, 1.0)], lower=1, upper=1)
    return builder.build()


def infeasible() -> Program:
    """Three binaries that should sum to four, and a row that has nothing to do with it."""
    builder = ProgramBuilder()
    keep = builder.columns("keep", 3, upper=1, integer=True, cost=1.0)
    builder.rows("harmless", (), [(0, keep, 1.0)], upper=3.0)
    builder.rows("need", (), [(0, keep, 1.0)], lower=4.0)
    return builder.build()


def hard(columns: int = 300, rows: int = 60) -> Program:
    """A dense multi-dimensional knapsack that no solver finishes in the time a test has."""
    random = np.random.default_rng(0)
    builder = ProgramBuilder()
    x = builder.columns("x", columns, upper=1, integer=True, cost=-random.integers(10, 100, columns).astype(float))
    weights = random.integers(5, 100, (rows, columns))
    builder.rows("cap", rows, [(np.arange(rows)[:, None], x[None, :], weights)], upper=columns * 12.0)
    return builder.build()


@st.composite
def small_programs(draw: st.DrawFn) -> Program:
    """Up to five integer columns within small bounds, up to four rows, small whole and half coefficients."""
    columns = draw(st.integers(1, 5))
    rows = draw(st.integers(0, 4))
    whole = st.integers(-4, 4).map(float)
    halves = st.integers(-8, 8).map(lambda number: number / 2)
    builder = ProgramBuilder()
    builder.offset = draw(halves)
    lower = np.array(draw(st.lists(st.integers(-2, 1), min_size=columns, max_size=columns)), dtype=float)
    width = np.array(draw(st.lists(st.integers(0, 2), min_size=columns, max_size=columns)), dtype=float)
    cost = draw(st.lists(halves, min_size=columns, max_size=columns))
    x = builder.columns("x", columns, lower=lower, upper=lower + width, cost=cost, integer=True)
    for row in range(rows):
        values = draw(st.lists(halves if row % 2 else whole, min_size=columns, max_size=columns))
        low = draw(st.integers(-6, 4).map(float) | st.just(-np.inf))
        high = low + draw(st.integers(0, 6)) if np.isfinite(low) else draw(st.integers(-4, 6))
        builder.rows(f"row{row}", (), [(0, x, values)], lower=low, upper=float(high) if row != 3 else np.inf)
    return builder.build()


def best_by_enumeration(program: Program) -> float | None:
    """The optimum over every integer point, or None if there is none."""
    matrix = np.zeros((program.row_count, program.column_count))
    for row in range(program.row_count):
        entries = slice(program.row_start[row], program.row_start[row + 1])
        matrix[row, program.column_index[entries]] = program.value[entries]
    best = None
    ranges = [range(int(low), int(high) + 1) for low, high in zip(program.lower, program.upper, strict=True)]
    for point in itertools.product(*ranges):
        activity = matrix @ np.array(point, dtype=float)
        if np.all(activity >= program.row_lower) and np.all(activity <= program.row_upper):
            objective = program.offset + float(np.dot(program.cost, point))
            best = objective if best is None else min(best, objective)
    return best
