"""The program of configurations beside its twin in PuLP, and beside all choices of small instances."""

from __future__ import annotations

from dataclasses import replace

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.index.formulation import formulate
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import all_options, options
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions, SolverStatus
from tests.models import cbc
from tests.models.index.index_instances import best_of_all, by_dynamic_program, random_problem

EXACT = SolveOptions(time_limit_s=60, gap=1e-9)
SCALE_US = 100.0


def twin(problem: IndexProblem, budget_bytes: int) -> float | None:
    """The optimum, written constraint by constraint over all candidates that can serve; None where there is none."""
    p = pulp.LpProblem("index", pulp.LpMinimize)
    of = [all_options(problem, s) for s in range(len(problem.shards))]
    x = [[pulp.LpVariable(f"x{s}_{o.candidate}", cat="Binary") for o in found] for s, found in enumerate(of)]
    for columns in x:
        p += pulp.lpSum(columns) == 1
    for h in range(len(problem.hosts)):
        p += (
            pulp.lpSum(
                o.size_bytes * column
                for shard, found, columns in zip(problem.shards, of, x, strict=True)
                if shard.host == h
                for o, column in zip(found, columns, strict=True)
            )
            <= budget_bytes
        )
    total = pulp.lpSum(o.time_us * c for found, cs in zip(of, x, strict=True) for o, c in zip(found, cs, strict=True))
    if problem.objective == "sum":
        p += total
    else:
        longest = pulp.LpVariable("T", 0)
        p += longest
        served: dict[tuple[int, int], list[pulp.LpAffineExpression]] = {}
        for s, shard in enumerate(problem.shards):
            threads = range(problem.hosts[shard.host].threads) if shard.thread is None else [shard.thread]
            for o, column in zip(of[s], x[s], strict=True):
                z = [pulp.LpVariable(f"z{s}_{o.candidate}_{t}", cat="Binary") for t in threads]
                p += pulp.lpSum(z) == column
                for t, on in zip(threads, z, strict=True):
                    served.setdefault((shard.host, t), []).append(o.time_us * on)
        for terms in served.values():
            p += pulp.lpSum(terms) <= longest
    return cbc.optimum(p)


def optimum(problem: IndexProblem, budget_bytes: int, *, pruned: bool = True) -> float | None:
    of = [(options if pruned else all_options)(problem, s) for s in range(len(problem.shards))]
    solution = solve(formulate(problem, of, budget_bytes, SCALE_US).program, EXACT)
    if solution.status is SolverStatus.INFEASIBLE:
        return None
    assert solution.objective is not None
    return solution.objective * SCALE_US


@pytest.mark.parametrize("objective", ["sum", "longest-thread"])
@pytest.mark.parametrize("seed", range(6))
def test_the_program_and_its_twin_have_one_optimum(seed: int, objective: str) -> None:
    problem = random_problem(seed, shards=6, objective=objective)
    for budget_bytes in (8, 15, 25, 200):
        expected = twin(problem, budget_bytes)
        found = optimum(problem, budget_bytes)
        assert found == (None if expected is None else pytest.approx(expected, rel=1e-6, abs=1e-6))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget_bytes=st.integers(1, 60), longest=st.booleans(), free=st.booleans())
def test_the_optimum_is_the_best_of_all_choices(seed: int, budget_bytes: int, longest: bool, free: bool) -> None:
    problem = random_problem(seed, shards=4, hosts=1, objective="longest-thread" if longest else "sum")
    if free:
        problem = replace(problem, shards=tuple(replace(shard, thread=None) for shard in problem.shards))
    best = best_of_all(problem, budget_bytes)
    expected = None if best is None else pytest.approx(best, rel=1e-6, abs=1e-6)
    assert optimum(problem, budget_bytes) == expected
    assert optimum(problem, budget_bytes, pruned=False) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), budget_bytes=st.integers(1, 120))
def test_the_optimum_is_that_of_the_dynamic_program(seed: int, budget_bytes: int) -> None:
    problem = random_problem(seed, shards=8)
    best = by_dynamic_program(problem, budget_bytes)
    assert optimum(problem, budget_bytes) == (None if best is None else pytest.approx(best, rel=1e-6, abs=1e-6))


def test_a_set_that_is_excluded_is_not_found_again() -> None:
    problem = random_problem(3, shards=4, hosts=1)
    of = [options(problem, s) for s in range(4)]
    formulated = formulate(problem, of, 200, SCALE_US)
    first = solve(formulated.program, EXACT)
    assert first.values is not None and first.objective is not None
    chosen = formulated.chosen(first.values)
    second = solve(formulated.without(chosen, range(4), "excluded").program, EXACT)
    assert second.values is not None and second.objective is not None
    assert formulated.chosen(second.values) != chosen
    assert second.objective >= first.objective - 1e-9
