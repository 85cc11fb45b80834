"""The compact program beside its twin in PuLP: one variable for every pair of states, nothing merged."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pulp
import pytest

from loadmaster.models.partition import transport
from loadmaster.models.partition.checker import check
from loadmaster.models.partition.choices import Choices, coarsened
from loadmaster.models.partition.moments import Memory, Moment
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models import cbc
from tests.models.partition.instances import random_problem, two_products, unequal


def twin(choices: Choices, moments: list[Moment], budget_bytes: int) -> float | None:
    """The optimum of the plain program, None where there is none."""
    model = pulp.LpProblem("partition", pulp.LpMinimize)
    y = [
        [pulp.LpVariable(f"y_{v}_{s}", cat="Binary") for s in range(len(variable.states))]
        for v, variable in enumerate(choices.variables)
    ]
    both = {}
    for (t, o), costs in choices.pairs.items():
        for i, j in itertools.product(range(costs.shape[0]), range(costs.shape[1])):
            both[t, o, i, j] = z = pulp.LpVariable(f"z_{t}_{o}_{i}_{j}", 0, 1)
            model += z >= y[t][i] + y[o][j] - 1
            if np.isinf(costs[i, j]):
                model += y[t][i] + y[o][j] <= 1
    for row in y:
        model += pulp.lpSum(row) == 1
    for moment in moments:
        held = [h * y[v][s] for v, sizes in moment.shares.items() for s, h in enumerate(sizes.tolist())]
        buffers = [b[i, j] * both[t, o, i, j] for (t, o), b in moment.buffers.items() for i, j in np.ndindex(b.shape)]
        model += pulp.lpSum(held + buffers) <= budget_bytes
    unary = [a * y[v][s] for v, costs in enumerate(choices.unary) for s, a in enumerate(costs.tolist()) if a]
    pairs = [
        choices.pairs[t, o][i, j] * z for (t, o, i, j), z in both.items() if np.isfinite(choices.pairs[t, o][i, j])
    ]
    model += pulp.lpSum(unary + pairs)
    return cbc.optimum(model)


@pytest.mark.parametrize("seed", [*range(6), 8, 13])
def test_equal_optima(seed: int) -> None:
    problem = random_problem(seed, mesh=(2, 2) if seed % 2 else (3,), operators=3, copies=seed > 5)
    equals_its_twin(problem)


@pytest.mark.parametrize("seed", range(4))
def test_equal_optima_with_unequal_workers(seed: int) -> None:
    mesh = ((3, 1), 2) if seed % 2 else ((2, 1),)
    equals_its_twin(unequal(random_problem(seed, mesh=mesh, operators=3, copies=True), seed))


def equals_its_twin(problem: PartitionProblem) -> None:
    choices = coarsened(problem)
    memory = Memory(choices)
    moments = [moment for n in range(len(problem.operators)) for moment in memory.moments(n)]
    least, most = int(memory.least_bytes.max()), int(memory.whole_bytes.max())
    for budget_bytes in (most * 2, (least + most) // 2, least - 1):
        program = transport.formulate(choices, moments, budget_bytes, scale=1.0, integer=True)
        solution = solve(program.program, SolveOptions(gap=0.0))
        wanted = twin(choices, moments, budget_bytes)
        if wanted is None:
            assert solution.values is None
            continue
        assert solution.objective == pytest.approx(wanted, rel=1e-6)
        assert solution.values is not None
        assert choices.cost(program.chosen(solution.values)) == pytest.approx(wanted, rel=1e-6)


def test_the_relaxation_is_below_the_program() -> None:
    choices = coarsened(random_problem(3, mesh=(2, 2), operators=4))
    memory = Memory(choices)
    moments = memory.moments(int(memory.whole_bytes.argmax()))
    budget_bytes = int(memory.whole_bytes.max())
    found = [
        solve(
            transport.formulate(choices, moments, budget_bytes, scale=1.0, integer=integer).program,
            SolveOptions(gap=0.0),
        ).objective
        for integer in (False, True)
    ]
    assert found[0] is not None and found[1] is not None and found[0] <= found[1] + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_costs_and_bytes_of_choices_are_the_checkers(seed: int) -> None:
    problem = random_problem(seed, mesh=(2, (3, 1)) if seed % 2 else (2, 2), operators=4, copies=True)
    problem = unequal(problem, seed) if seed % 4 > 1 else problem
    problem = replace(problem, overlap=0.75 if seed > 3 else None)
    choices = coarsened(problem)
    memory = Memory(choices)
    rng = np.random.default_rng(seed)
    for _ in range(10):
        chosen = [int(rng.integers(len(variable.states))) for variable in choices.variables]
        verdict = check(problem, choices.splits(chosen), 1 << 40)
        cost = choices.cost(chosen)
        if np.isinf(cost):
            assert not verdict.ok
            continue
        assert verdict.ok, verdict.violations
        assert verdict.objective == pytest.approx(cost)
        for n, held in enumerate(verdict.resident_bytes.tolist()):
            assert held == max(moment.bytes_of(chosen) for moment in memory.moments(n))


def test_what_is_tied_is_one_choice() -> None:
    problem = two_products(2, 2)
    tied = replace(
        problem,
        tensors=tuple(replace(t, tie="w") if t.name in "ab" else t for t in problem.tensors),
        operators=tuple(replace(o, tie="mm") if o.op == "mm" else o for o in problem.operators),
    )
    # x, h with r (of an elementwise operator), y, both matrices; both products.
    assert len(coarsened(problem).variables) == 5 + 2
    choices = coarsened(tied)
    assert len(choices.variables) == 4 + 1
    assert choices.operator_of[1] is None and choices.tensor_of[2] == choices.tensor_of[3]
