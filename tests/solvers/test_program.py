"""The builder and the frozen form, held against dense matrices."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.solvers.mps import write_mps
from loadmaster.solvers.program import Program, ProgramBuilder
from tests.solvers.programs import assignment, best_by_enumeration, knapsack, small_programs


def dense(program: Program) -> np.ndarray:
    matrix = np.zeros((program.row_count, program.column_count))
    for row in range(program.row_count):
        for entry in range(program.row_start[row], program.row_start[row + 1]):
            matrix[row, program.column_index[entry]] += program.value[entry]
    return matrix


entries = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-3, 3).map(float)), max_size=30)


@given(entries)
def test_repeated_entries_add_up_and_zeros_vanish(triples: list[tuple[int, int, float]]) -> None:
    expected = np.zeros((4, 5))
    for row, column, value in triples:
        expected[row, column] += value
    builder = ProgramBuilder()
    builder.columns("x", 5)
    rows, columns, values = (np.array(part) for part in zip(*triples, strict=True)) if triples else ((), (), ())
    builder.rows("r", 4, [(rows, columns, values)])
    program = builder.build()
    np.testing.assert_array_equal(dense(program), expected)
    assert program.nonzero_count == np.count_nonzero(expected)
    for row in range(4):
        inside = program.column_index[program.row_start[row] : program.row_start[row + 1]]
        assert np.all(np.diff(inside) > 0)


@given(entries, st.permutations(range(30)))
def test_the_order_of_terms_does_not_change_the_program(
    triples: list[tuple[int, int, float]], order: list[int]
) -> None:
    def build(chosen: list[tuple[int, int, float]]) -> Program:
        builder = ProgramBuilder()
        builder.columns("x", 5)
        builder.rows("r", 4, [(row, column, value) for row, column, value in chosen])
        return builder.build()

    shuffled = [triples[place] for place in order if place < len(triples)]
    assert build(triples).sha256() == build(shuffled).sha256()


def test_blocks_name_their_members() -> None:
    program = assignment()
    assert program.column_label(5) == "does[1,2]"
    assert program.row_label(4) == "job[1]"
    assert knapsack().row_label(0) == "budget"
    assert program.block("does").indices.shape == (3, 3)
    with pytest.raises(KeyError):
        program.block("nobody")
    with pytest.raises(IndexError):
        program.row_label(6)


def test_row_list_equals_rows() -> None:
    builder = ProgramBuilder()
    builder.columns("x", 4)
    listed = builder.row_list("r")
    listed.add([0, 2], [1.0, 2.0], upper=3.0)
    listed.add([1, 3, 0], [1.0, -1.0, 4.0], lower=0.0)
    np.testing.assert_array_equal(listed.done(), [0, 1])
    np.testing.assert_array_equal(dense(builder.build()), [[1, 0, 2, 0], [4, 1, 0, -1]])
    with pytest.raises(ValueError, match="2 columns but 1 values"):
        listed.add([0, 1], [1.0])


@pytest.mark.parametrize(("row", "column"), [(1, 0), (-1, 0), (0, 3), (0, -1)])
def test_indices_outside_are_refused(row: int, column: int) -> None:
    builder = ProgramBuilder()
    builder.columns("x", 3)
    with pytest.raises(IndexError, match="rows r"):
        builder.rows("r", 1, [(row, column, 1.0)])


@pytest.mark.parametrize("field", ["cost", "lower", "upper", "value", "row_upper"])
def test_the_hash_sees_every_number(field: str) -> None:
    program = knapsack()
    changed = getattr(program, field).copy()
    changed[0] += 1.0
    assert dataclasses.replace(program, **{field: changed}).sha256() != program.sha256()


def test_the_hash_sees_integrality_and_offset_but_no_names() -> None:
    program = knapsack()
    continuous = dataclasses.replace(program, integer=np.zeros(3, dtype=bool))
    renamed = dataclasses.replace(program, column_blocks=(), row_blocks=())
    assert continuous.sha256() != program.sha256() != dataclasses.replace(program, offset=1.0).sha256()
    assert renamed.sha256() == program.sha256()


def test_a_program_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        knapsack().cost[0] = 0.0


@settings(deadline=None)
@given(small_programs(), st.data())
def test_activity_and_violation(program: Program, data: st.DataObject) -> None:
    point = np.array(
        data.draw(st.lists(st.integers(-3, 4), min_size=program.column_count, max_size=program.column_count))
    )
    activity = dense(program) @ point
    np.testing.assert_allclose(program.activity(point.astype(float)), activity)
    excesses = [0.0, *(program.lower - point), *(point - program.upper)]
    excesses += [*(program.row_lower - activity), *(activity - program.row_upper)]
    assert program.violation(point.astype(float)) == pytest.approx(max(excesses))


@pytest.mark.parametrize("value", [0.5, 0.75, 1.25, -0.25])
def test_an_integer_column_between_integers_is_a_violation(value: float) -> None:
    """By its distance to the nearest one; a continuous column there is none."""
    builder = ProgramBuilder()
    builder.columns("x", 2, lower=-4, upper=4, integer=[True, False])
    program = builder.build()
    assert program.violation(np.array([value, 1.0])) == abs(value - round(value))
    assert program.violation(np.array([1.0, value])) == 0.0


def test_large_rows_do_not_cost_small_rows_their_digits() -> None:
    builder = ProgramBuilder()
    x = builder.columns("x", 2, upper=10, integer=True)
    builder.rows("bytes", (), [(0, x[0], 1e17)])
    builder.rows("count", (), [(0, x[1], 1.0)])
    assert builder.build().activity(np.array([3.0, 1.0]))[1] == 1.0


def test_fixed_leaves_one_value_to_a_column() -> None:
    program = knapsack()
    fixed = program.fixed(np.array([1]), np.array([1.0]))
    assert fixed.lower[1] == fixed.upper[1] == 1.0
    assert np.array_equal(fixed.lower[[0, 2]], program.lower[[0, 2]])
    assert program.upper[1] > program.lower[1]


def test_with_row_appends_one_row() -> None:
    program = knapsack().with_row("extra", np.array([0.0, 2.0, 0.5]), upper=7.0)
    np.testing.assert_array_equal(dense(program), [[2, 3, 1], [0, 2, 0.5]])
    assert program.row_label(1) == "extra"
    assert program.row_upper[1] == 7.0


@given(small_programs())
def test_mps_says_the_same_to_pulps_reader(program: Program) -> None:
    """PuLP reads the file back as an expression model; enumerating its points must give the same optimum."""
    file = io.StringIO()
    write_mps(program, file)
    problem = read_with_pulp(file.getvalue())
    variables = [problem.variablesDict()[f"c{column}"] for column in range(program.column_count)]
    assert all(variable.cat == pulp.LpInteger for variable in variables)
    np.testing.assert_array_equal([v.lowBound for v in variables], program.lower)
    np.testing.assert_array_equal([v.upBound for v in variables], program.upper)
    matrix, low, high = [], [], []
    for row in problem.constraints.values():
        matrix.append([row.get(variable, 0.0) for variable in variables])
        low.append(-row.constant if row.sense >= 0 else -np.inf)
        high.append(-row.constant if row.sense <= 0 else np.inf)
    builder = ProgramBuilder()
    builder.offset = program.offset
    cost = [problem.objective.get(variable, 0.0) for variable in variables]
    x = builder.columns("x", len(variables), lower=program.lower, upper=program.upper, cost=cost, integer=True)
    for values, lower, upper in zip(matrix, low, high, strict=True):
        builder.rows("r", (), [(0, x, values)], lower=lower, upper=upper)
    assert best_by_enumeration(builder.build()) == best_by_enumeration(program)


def read_with_pulp(text: str) -> pulp.LpProblem:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".mps") as file:
        file.write(text)
        file.flush()
        return pulp.LpProblem.fromMPS(file.name)[1]


@pytest.mark.parametrize(
    ("lower", "upper"), [(0.0, np.inf), (-np.inf, np.inf), (-np.inf, 5.0), (-2.0, np.inf), (0.1, 0.1)]
)
def test_mps_keeps_infinite_bounds(lower: float, upper: float) -> None:
    builder = ProgramBuilder()
    builder.columns("x", 1, lower=lower, upper=upper, cost=1 / 3)
    file = io.StringIO()
    write_mps(builder.build(), file)
    (variable,) = read_with_pulp(file.getvalue()).variables()
    assert (variable.lowBound, variable.upBound) == (
        None if np.isinf(lower) else lower,
        None if np.isinf(upper) else upper,
    )
    assert "0.3333333333333333" in file.getvalue()
