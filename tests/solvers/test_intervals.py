"""Intervals that must not overlap: against enumeration of every point, and refused where nobody knows them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmaster.errors import InputError
from loadmaster.solvers.process import solve
from loadmaster.solvers.program import Program, ProgramBuilder
from loadmaster.solvers.solution import SolveOptions, SolverStatus

few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def one_machine(sizes: list[int], releases: list[int], horizon: int) -> Program:
    """Jobs one after another on one machine, each from its release on; minimize the last end."""
    builder = ProgramBuilder()
    start = builder.columns("start", len(sizes), lower=releases, upper=horizon, integer=True)
    end = builder.columns("end", (), upper=2 * horizon, cost=1, integer=True)
    row = np.arange(len(sizes))
    builder.rows("last", len(sizes), [(row, end, 1), (row, start, -1)], lower=sizes)
    builder.intervals.keep_apart(builder.intervals.add(start, sizes))
    return builder.build()


def clear(starts: list[int], sizes: list[int]) -> bool:
    """Whether jobs [a, a + size) lie one after another."""
    pairs = itertools.combinations(zip(starts, sizes, strict=True), 2)
    return all(a + m <= b or b + n <= a for (a, m), (b, n) in pairs)


@pytest.mark.slow
@few
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=4))
def test_one_machine_equals_enumeration(jobs: list[tuple[int, int]]) -> None:
    sizes, releases = [size for size, _ in jobs], [release for _, release in jobs]
    ends = []
    for order in itertools.permutations(range(len(jobs))):
        now = 0
        for job in order:
            now = max(now, releases[job]) + sizes[job]
        ends.append(now)
    program = one_machine(sizes, releases, sum(sizes) + max(releases))
    solution = solve(program, SolveOptions(gap=0.0), solver="cpsat")
    assert (solution.status, solution.objective, solution.bound) == (SolverStatus.OPTIMAL, min(ends), min(ends))
    assert program.violation(solution.values) == 0.0
    assert clear(solution.values[: len(jobs)].astype(int).tolist(), sizes)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=2, max_size=4))
def test_a_point_violates_a_program_where_its_intervals_overlap(jobs: list[tuple[int, int]]) -> None:
    starts, sizes = [start for start, _ in jobs], [size for _, size in jobs]
    program = one_machine(sizes, [0] * len(jobs), 10)
    point = np.array([*starts, max(start + size for start, size in jobs)], dtype=float)
    assert (program.violation(point) == 0.0) == clear(starts, sizes)


@pytest.mark.slow
@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=5))
def test_the_best_jobs_that_fit_equal_enumeration(jobs: list[tuple[int, int, int]]) -> None:
    """Jobs of a fixed start, a size and a worth: the most worth of jobs that do not overlap."""
    starts, sizes, worth = ([job[part] for job in jobs] for part in range(3))
    builder = ProgramBuilder()
    there = builder.columns("there", len(jobs), upper=1, cost=-np.array(worth), integer=True)
    start = builder.columns("start", len(jobs), lower=starts, upper=starts, integer=True)
    builder.intervals.keep_apart(builder.intervals.add(start, sizes, presence=there))
    best = 0
    for chosen in itertools.product([False, True], repeat=len(jobs)):
        if clear(list(itertools.compress(starts, chosen)), list(itertools.compress(sizes, chosen))):
            best = max(best, sum(itertools.compress(worth, chosen)))
    program = builder.build()
    solution = solve(program, SolveOptions(gap=0.0), solver="cpsat")
    assert solution.objective == -best
    assert program.violation(solution.values) == 0.0


def test_too_much_for_the_machine_is_infeasible() -> None:
    program = dataclasses.replace(one_machine([2, 2, 2], [0, 0, 0], 6), upper=np.array([3.0, 3.0, 3.0, 12.0]))
    solution = solve(program, solver="cpsat")
    assert solution.status is SolverStatus.INFEASIBLE


def test_a_start_that_overlaps_is_no_incumbent() -> None:
    program = one_machine([5, 5], [0, 0], 10)
    options = SolveOptions(
        gap=0.0, start_columns=np.arange(3), start_values=np.array([0.0, 0.0, 5.0]), time_limit_s=5.0
    )
    assert solve(program, options, solver="cpsat").objective == 10


@pytest.mark.parametrize("solver", ["auto", "highs", "pulp:PULP_CBC_CMD"])
def test_others_refuse_intervals_in_words(solver: str) -> None:
    with pytest.raises(InputError, match="takes no programs with intervals") as caught:
        solve(one_machine([1], [0], 1), solver=solver)
    assert caught.value.field == "solver"
    assert "cpsat" in caught.value.remedy


def test_intervals_are_part_of_the_programs_identity() -> None:
    program = one_machine([1, 2], [0, 0], 3)
    assert program.sha256() == one_machine([1, 2], [0, 0], 3).sha256()
    assert program.sha256() != dataclasses.replace(program, intervals=None).sha256()
    with pytest.raises(ValueError, match="read-only"):
        program.intervals.size[0] = 5


@pytest.mark.parametrize(
    ("add", "field"),
    [
        ({"start": 7, "size": 1}, "intervals.start"),
        ({"start": 1, "size": 1}, "intervals.start"),
        ({"start": 0, "size": -1}, "intervals.size"),
        ({"start": 0, "size": 1, "presence": 0}, "intervals.presence"),
    ],
)
def test_intervals_over_unfit_columns_are_refused(add: dict[str, int], field: str) -> None:
    builder = ProgramBuilder()
    builder.columns("whole", (), upper=5, integer=True)
    builder.columns("continuous", (), upper=5)
    builder.intervals.add(**add)
    with pytest.raises(InputError) as caught:
        solve(builder.build(), solver="cpsat")
    assert caught.value.field == field


def test_groups_of_intervals_that_are_not_there_are_refused() -> None:
    builder = ProgramBuilder()
    builder.columns("whole", (), upper=5, integer=True)
    builder.intervals.add(0, 1)
    builder.intervals.keep_apart([0, 1])
    with pytest.raises(InputError, match="is no interval"):
        solve(builder.build(), solver="cpsat")
