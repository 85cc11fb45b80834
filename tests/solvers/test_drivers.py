"""Every solver against known optima, an enumerating oracle, and each other."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError, SolverError
from loadmaster.solvers.child import answer
from loadmaster.solvers.process import solve, start
from loadmaster.solvers.program import Program, ProgramBuilder
from loadmaster.solvers.solution import Link, Solution, SolveOptions, SolverStatus, StoppedBy
from tests.in_process_solves import Reports
from tests.solvers.programs import (
    assignment,
    best_by_enumeration,
    hard,
    infeasible,
    knapsack,
    small_programs,
)

SOLVERS = ["highs", "cpsat", "pulp:PULP_CBC_CMD"]
EXACT = SolveOptions(gap=0.0)

# Each example is a process per solver.
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("program", "optimum"), [(knapsack(), -8.0), (assignment(), 6.0)])
def test_known_optima(solver: str, program: Program, optimum: float) -> None:
    solution = solve(program, EXACT, solver=solver)
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.stopped_by is StoppedBy.GAP
    assert solution.objective == pytest.approx(optimum)
    assert solution.bound == pytest.approx(optimum)
    assert solution.gap == pytest.approx(0.0)
    assert program.violation(solution.values) == 0.0
    assert solution.cpu_seconds > 0.0


def test_a_block_of_the_solution_has_the_blocks_shape() -> None:
    program = assignment()
    solution = solve(program)
    np.testing.assert_array_equal(solution.block(program.block("does").indices), np.fliplr(np.eye(3)))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@few
@given(program=small_programs())
def test_equals_enumeration(solver: str, program: Program) -> None:
    best = best_by_enumeration(program)
    solution = solve(program, EXACT, solver=solver)
    if best is None:
        assert solution.status is SolverStatus.INFEASIBLE
        assert solution.values is None
    else:
        assert solution.status is SolverStatus.OPTIMAL
        assert solution.objective == pytest.approx(best)
        assert solution.bound == pytest.approx(best)
        assert program.violation(solution.values) <= 1e-9


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible(solver: str) -> None:
    solution = solve(infeasible(), solver=solver)
    assert (solution.status, solution.stopped_by) == (SolverStatus.INFEASIBLE, StoppedBy.PROOF)
    assert solution.values is None
    assert solution.objective is None
    with pytest.raises(ValueError, match="infeasible"):
        solution.block(np.arange(1))


def test_infeasible_for_integrality_alone() -> None:
    builder = ProgramBuilder()
    x = builder.columns("x", 2, upper=4, integer=True)
    builder.rows("odd", (), [(0, x, 2.0)], lower=3, upper=3)
    solution = solve(builder.build())
    assert solution.status is SolverStatus.INFEASIBLE


@pytest.mark.parametrize("solver", ["highs", "pulp:PULP_CBC_CMD", "pulp:HiGHS"])
@pytest.mark.parametrize("integer", [True, False])
def test_unbounded(solver: str, integer: bool) -> None:
    builder = ProgramBuilder()
    x = builder.columns("x", 2, integer=integer, cost=[-1.0, 0.0])
    builder.rows("link", (), [(0, x, [1.0, -1.0])], upper=1.0)
    solution = solve(builder.build(), solver=solver)
    assert (solution.status, solution.stopped_by) == (SolverStatus.UNBOUNDED, StoppedBy.PROOF)
    assert solution.values is None


@pytest.mark.parametrize("solver", ["highs", "pulp:PULP_CBC_CMD", "pulp:HiGHS"])
def test_infeasible_with_an_unbounded_ray_is_infeasible(solver: str) -> None:
    builder = ProgramBuilder()
    x = builder.columns("x", 2, cost=[-1.0, 0.0])
    builder.rows("low", (), [(0, x[1], 1.0)], upper=-1.0)
    assert solve(builder.build(), solver=solver).status is SolverStatus.INFEASIBLE


@pytest.mark.parametrize("solver", ["highs", "pulp:PULP_CBC_CMD"])
def test_linear_program(solver: str) -> None:
    """minimize -x - 2y over x + y <= 4, x + 3y <= 6, x, y >= 0: the vertex (3, 1), by hand."""
    builder = ProgramBuilder()
    x = builder.columns("x", 2, cost=[-1.0, -2.0])
    builder.rows("r", 2, [(np.arange(2)[:, None], x[None, :], [[1.0, 1.0], [1.0, 3.0]])], upper=[4.0, 6.0])
    builder.offset = 10.0
    solution = solve(builder.build(), solver=solver)
    assert solution.status is SolverStatus.OPTIMAL
    np.testing.assert_allclose(solution.values, [3.0, 1.0])
    assert solution.objective == solution.bound == pytest.approx(5.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_programs_without_rows_or_columns(solver: str) -> None:
    empty = ProgramBuilder()
    empty.offset = 3.0
    assert solve(empty.build(), solver=solver).objective == 3.0
    empty.rows("impossible", (), [], lower=1.0)
    assert solve(empty.build(), solver=solver).status is SolverStatus.INFEASIBLE
    rowless = ProgramBuilder()
    rowless.columns("x", 2, lower=-1, upper=2, cost=[1.0, -1.0], integer=True)
    np.testing.assert_array_equal(solve(rowless.build(), solver=solver).values, [-1.0, 2.0])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("cost", [0.0, 0.25, -0.5])
def test_the_offset_counts_in_objective_and_bound(solver: str, cost: float) -> None:
    """At fractional costs, which CP-SAT takes in units of their own, and where nothing is minimized."""
    builder = ProgramBuilder()
    builder.offset = 7.0
    x = builder.columns("x", 2, lower=1, upper=3, cost=cost, integer=True)
    builder.rows("r", (), [(0, x, 1.0)], lower=3, upper=5)
    solution = solve(builder.build(), EXACT, solver=solver)
    expected = 7.0 + cost * (3 if cost > 0 else 5)
    assert solution.objective == solution.bound == pytest.approx(expected)


@pytest.mark.parametrize("solver", SOLVERS)
def test_crossed_bounds_are_infeasible(solver: str) -> None:
    builder = ProgramBuilder()
    builder.columns("x", 2, lower=[0.0, 0.25], upper=[1.0, 0.75], integer=True)
    solution = solve(builder.build(), solver=solver)
    assert solution.status is SolverStatus.INFEASIBLE


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_cutoff_is_kept(solver: str) -> None:
    program = dataclasses.replace(knapsack(), offset=10.0)
    good = solve(program, SolveOptions(cutoff=2.5), solver=solver)
    assert good.objective == pytest.approx(2.0)
    none = solve(program, SolveOptions(cutoff=1.5), solver=solver)
    assert none.status is SolverStatus.INFEASIBLE
    assert none.bound == 1.5


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e9])
def test_tolerances_are_of_the_costs(solver: str, factor: float) -> None:
    """A billionth of a cost is no rounding where all are as small."""
    unscaled = assignment()
    program = dataclasses.replace(unscaled, cost=unscaled.cost * factor, offset=2.0 * factor)
    solution = solve(program, EXACT, solver=solver)
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.objective == pytest.approx(8.0 * factor, rel=1e-6)
    if solution.bound is not None:
        assert solution.bound == pytest.approx(8.0 * factor, rel=1e-6)
    if solver != "cpsat":  # a cutoff is a row there, of whole numbers
        none = solve(program, SolveOptions(gap=0.0, cutoff=7.0 * factor), solver=solver)
        assert none.status is SolverStatus.INFEASIBLE


@pytest.mark.parametrize("name", ["solve_error", "start_called_optimal", "cbc_breaks_rows"])
def test_what_breaks_a_solver_is_solved(name: str) -> None:
    """Seen with HiGHS 1.16.0: no answer at all, and a start that is 4 % dearer than its own bound and "optimal". With
    CBC 2.10.3: an "optimal" point that breaks five rows."""
    with np.load(Path(__file__).parent / f"{name}.npz") as stored:
        arrays = dict(stored)
    start_values = arrays.pop("start", None)
    program = Program(**{**arrays, "offset": float(arrays["offset"])}, column_blocks=(), row_blocks=())
    columns = None if start_values is None else np.arange(program.column_count)
    solution = solve(program, SolveOptions(gap=0.0, start_columns=columns, start_values=start_values), solver="highs")
    other = solve(program, EXACT, solver="pulp:PULP_CBC_CMD")
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.objective == pytest.approx(other.objective, rel=1e-6)
    assert solution.bound == pytest.approx(other.objective, rel=1e-6)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_whole_number_between_two_is_infeasible(solver: str) -> None:
    """CBC 2.10.3 without preprocessing crashes on it."""
    builder = ProgramBuilder()
    whole = builder.columns("whole", 1, upper=1, integer=True)
    builder.rows("half", (), [(0, whole, [2.0])], lower=1.0, upper=1.0)
    assert solve(builder.build(), EXACT, solver=solver).status is SolverStatus.INFEASIBLE


@pytest.mark.parametrize(
    ("point", "breaks"), [([1.0, 1.0, 0.0], "budget"), ([0.0, 0.0, 2.0], r"keep\[2\]"), ([1.0, 0.0, 1.0], None)]
)
def test_a_point_that_breaks_a_row_is_no_answer(point: list[float], breaks: str | None) -> None:
    def driver(program: Program, options: SolveOptions, link: Link) -> Solution:
        values = np.array(point)
        found = (values, program.objective(values), -8.0, 0.0, 0.0, 0)
        return Solution(SolverStatus.OPTIMAL, StoppedBy.GAP, *found, solver="highs", solver_version="0")

    if breaks is None:
        assert answer(driver, knapsack(), EXACT, Reports(), "highs").objective == -8.0
        return
    with pytest.raises(SolverError, match=f"highs answered with a point that breaks {breaks}. Try another solver"):
        answer(driver, knapsack(), EXACT, Reports(), "highs")


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "cpsat"])
def test_a_whole_start_is_never_lost(solver: str) -> None:
    """A start that the solver alone would not find in no time, given back or bettered."""
    program = hard(100, 20)
    good = solve(program, SolveOptions(node_limit=20))
    options = SolveOptions(node_limit=0, start_columns=np.arange(program.column_count), start_values=good.values)
    with start(program, options, solver=solver) as running:
        running.cancel()
        solution = running.wait()
    assert solution.objective is None or solution.objective <= good.objective
    assert solve(program, options).objective <= good.objective


def test_a_partial_start_is_completed() -> None:
    program = hard(40, 5)
    best = solve(program, SolveOptions(gap=0.0, time_limit_s=60))
    chosen = np.arange(0, 40, 2)
    options = SolveOptions(node_limit=0, start_columns=chosen, start_values=best.values[chosen])
    assert solve(program, options).objective == pytest.approx(best.objective)


def test_a_useless_start_does_no_harm() -> None:
    program = knapsack()
    options = SolveOptions(start_columns=np.arange(3), start_values=np.ones(3))
    for solver in ("highs", "cpsat"):
        assert solve(program, options, solver=solver).objective == pytest.approx(-8.0)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "limit"), [("highs", 3), ("cpsat", 1)])
def test_same_seed_and_node_limit_give_the_same_answer(solver: str, limit: int) -> None:
    program = hard(150, 30)
    options = SolveOptions(node_limit=limit, seed=7)
    first, second = (solve(program, options, solver=solver) for _ in range(2))
    assert first.stopped_by is StoppedBy.NODES
    assert first.status is SolverStatus.FEASIBLE
    np.testing.assert_array_equal(first.values, second.values)
    assert (first.bound, first.nodes) == (second.bound, second.nodes)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_gap_is_respected(solver: str) -> None:
    program = hard(60, 5)
    solution = solve(program, SolveOptions(gap=0.2), solver=solver)
    assert solution.status is SolverStatus.OPTIMAL
    assert solution.gap <= 0.2 + 1e-9


@pytest.mark.parametrize("solver", SOLVERS)
def test_unknown_parameters_are_refused(solver: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(knapsack(), SolveOptions(parameters={"no_such_thing": 1}), solver=solver)
    assert "no_such_thing" in str(caught.value)


@pytest.mark.parametrize(
    ("solver", "parameters"), [("highs", {"mip_heuristic_effort": 0.0}), ("cpsat", {"linearization_level": 2})]
)
def test_known_parameters_are_passed(solver: str, parameters: dict[str, float]) -> None:
    assert solve(knapsack(), SolveOptions(parameters=parameters), solver=solver).objective == pytest.approx(-8)


def one_row(**columns: object) -> Program:
    builder = ProgramBuilder()
    settings = {"upper": 3.0, "integer": True, "cost": -1.0, **columns}
    x = builder.columns("x", 2, **settings)
    builder.rows("r", (), [(0, x, [1.0, 1.0])], upper=4.0)
    return builder.build()


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (one_row(integer=[True, False]), r"x\[1\]: it is continuous"),
        (one_row(upper=[3.0, np.inf]), r"x\[1\]: it is without an upper bound"),
        (one_row(lower=[-np.inf, 0.0]), r"x\[0\]: it is without a lower bound"),
        (one_row(upper=2e18), "row r overflows"),
        (one_row().with_row("pi", np.array([np.pi, 1.0]), upper=1.0), "row pi is no ratio"),
    ],
)
def test_cpsat_says_why_it_cannot(program: Program, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        solve(program, solver="cpsat")
    assert "highs" in caught.value.remedy


def test_cpsat_scales_fractions_exactly() -> None:
    """x/3 + 0.1 y <= 1 with integers up to 10: x = 2 leaves y <= 10/3, so -2*2 - 3; x = 3 leaves y = 0."""
    builder = ProgramBuilder()
    x = builder.columns("x", 2, upper=10, integer=True, cost=[-2.0, -1.0])
    builder.rows("r", (), [(0, x, [1 / 3, 0.1])], upper=1.0)
    program = builder.build()
    points = [p for p in itertools.product(range(11), repeat=2) if 10 * p[0] + 3 * p[1] <= 30]
    expected = min(-2 * a - b for a, b in points)
    assert solve(program, EXACT, solver="cpsat").objective == expected


@pytest.mark.parametrize("solver", ["cpsat", "highs"])
def test_fractional_bounds_leave_the_integers_between_them(solver: str) -> None:
    """Of columns and of rows, positive and negative: many small programs beside each other, each enumerated."""
    random = np.random.default_rng(0)
    builder = ProgramBuilder()
    expected = 0.0
    for _ in range(200):
        low = random.integers(-10, 11, 2) / 4
        high = low + random.integers(0, 11, 2) / 4
        coefficients = random.integers(-6, 7, 2) / 2
        row_low = random.integers(-10, 11) / 4
        row_high = row_low + random.integers(0, 13) / 4
        cost = random.choice([-1.0, 1.0], 2)
        values = [
            cost @ point
            for point in itertools.product(range(-3, 6), repeat=2)
            if np.all(low <= point) and np.all(point <= high) and row_low <= coefficients @ point <= row_high
        ]
        if values:
            x = builder.columns("x", 2, lower=low, upper=high, cost=cost, integer=True)
            builder.rows("r", (), [(0, x, coefficients)], lower=row_low, upper=row_high)
            expected += min(values)
    solution = solve(builder.build(), EXACT, solver=solver)
    assert solution.objective == solution.bound == expected


@pytest.mark.parametrize("integer", [True, False])
def test_an_iteration_limit_proves_nothing_of_a_linear_program(integer: bool) -> None:
    """A simplex that was stopped on its way is no bound; a mixed-integer program is not stopped by its relaxation."""
    program = hard(60, 5)
    program = dataclasses.replace(program, integer=np.full(60, integer))
    options = SolveOptions(parameters={"simplex_iteration_limit": 3, "presolve": "off"}, gap=0.0, time_limit_s=20.0)
    best = solve(dataclasses.replace(program, integer=np.zeros(60, dtype=bool)), EXACT).objective
    solution = solve(program, options)
    if not integer:
        assert solution.stopped_by is StoppedBy.NODES
        assert solution.status in (SolverStatus.FEASIBLE, SolverStatus.NO_SOLUTION)
        assert solution.bound is None
    assert solution.bound is None or solution.bound <= solution.objective + 1e-6
    assert solution.objective is None or solution.objective >= best - 1e-6


@pytest.mark.slow
@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
@few
def test_cpsat_takes_any_measured_costs(cost: list[float]) -> None:
    program = dataclasses.replace(knapsack(), cost=np.array(cost))
    best = best_by_enumeration(program)
    solution = solve(program, EXACT, solver="cpsat")
    assert solution.objective == pytest.approx(best, abs=1e-3)
    assert solution.bound <= best + 1e-6


def test_numbers_no_solver_can_use_are_refused() -> None:
    broken = dataclasses.replace(knapsack(), cost=np.array([np.nan, 1.0, 1.0]))
    with pytest.raises(InputError, match="keep\\[0\\]: not a number"):
        solve(broken)
    broken = dataclasses.replace(knapsack(), value=np.array([1.0, np.inf, 1.0]))
    with pytest.raises(InputError, match="budget: not a finite number"):
        solve(broken)
