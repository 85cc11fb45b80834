"""MONeT's formulation: its optimum is the best that the checker accepts, and its points read back as schedules."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadmaster.models.memory import monet, plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.plan import Compute
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem, Objective
from loadmaster.models.memory.unconstrained import unconstrained_cost
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import Solution, SolveOptions, SolverStatus
from tests.models.cbc import optimum
from tests.models.memory.brute_force import best_objective
from tests.models.memory.instances import UNIT, budgets, random_problem, seeds, tight_cases
from tests.models.memory.twins import monet_twin

# PuLP announces another way to make variables; the one used here works in all of 3.x.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OBJECTIVES: tuple[Objective, ...] = ("time", "energy")


def solved(formulation: monet.Monet) -> Solution:
    return solve(formulation.program, SolveOptions(gap=0.0), solver="highs")


def assert_exact(problem: MemoryProblem, budget: int, best: float) -> None:
    """The program's optimum is the best of all schedules and reads back as such; infinite: there is none."""
    formulation = monet.formulate(problem, budget)
    solution = solved(formulation)
    if math.isinf(best):
        assert solution.status is SolverStatus.INFEASIBLE
        return
    assert solution.objective == pytest.approx(best)
    assert solution.values is not None
    schedule = formulation.schedule(solution.values)
    verdict = check(problem, schedule, budget)
    assert verdict.violations == ()
    assert verdict.objective == pytest.approx(best)
    start = formulation.start(schedule)
    assert formulation.program.violation(start) < 1e-6
    assert formulation.program.objective(start) == pytest.approx(best)


@pytest.mark.parametrize("seed", seeds(range(8), range(8, 100)))
def test_optimum_is_the_best_of_all_schedules(seed: int) -> None:
    problem, cases = tight_cases(seed)
    for budget, best in cases:
        assert_exact(problem, budget, best)


@pytest.mark.parametrize("seed", range(20, 26))
def test_array_and_pulp_twin_have_the_same_optimum(seed: int) -> None:
    problem = random_problem(seed, operators=5, encodings=0.4, in_place=0.6, objective=OBJECTIVES[seed % 2])
    for budget in budgets(problem, (0.45, 0.8)):
        twin = optimum(monet_twin(problem, budget))
        assert solved(monet.formulate(problem, budget)).objective == (None if twin is None else pytest.approx(twin))


def test_sizes_of_real_tensors_are_exact_too() -> None:
    """Bytes in the thousands of millions, odd to the last: the program and the checker draw the same line."""
    problem = random_problem(5, operators=5, unit_bytes=123_456_789)
    for budget in budgets(problem, (0.6,)):
        formulation = monet.formulate(problem, budget)
        solution = solved(formulation)
        assert solution.values is not None
        schedule = formulation.schedule(solution.values)
        peak = check(problem, schedule, budget).peak_bytes
        assert check(problem, schedule, budget).ok
        at_the_peak = solved(monet.formulate(problem, peak))
        assert at_the_peak.objective == pytest.approx(solution.objective)
        assert at_the_peak.values is not None
        assert check(problem, monet.formulate(problem, peak).schedule(at_the_peak.values), peak).ok


def test_leaving_out_recomputations_restricts() -> None:
    problem = random_problem(22, operators=5)
    budget = budgets(problem, (0.5,))[0]
    free, none = (
        solved(monet.formulate(problem, budget, may_recompute=allowed))
        for allowed in (None, np.zeros((problem.stage_count, len(problem.forward)), dtype=bool))
    )
    assert free.objective is not None
    assert none.objective is None or none.objective >= free.objective - 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_optimum_falls_with_the_budget_to_the_unconstrained_cost(seed: int) -> None:
    problem = random_problem(seed, operators=4, encodings=0.0, in_place=0.0)
    objectives = [solved(monet.formulate(problem, b)).objective for b in budgets(problem, (0.4, 0.6, 0.8, 3.0))]
    found = [math.inf if o is None else o for o in objectives]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(unconstrained_cost(problem))


def test_start_replaces_dominated_implementations() -> None:
    """A schedule that uses an implementation left out of the program still becomes a feasible point."""
    problem = random_problem(3, operators=4, choices=3, encodings=0.0, in_place=0.0)
    budget = 10 * budgets(problem, (1.0,))[0]
    formulation = monet.formulate(problem, budget)
    plain_step = plain.formulate(problem)
    worst = [
        replace(c, implementation=int(problem.forward_costs(c.forward, recompute=False).argmax()))
        for c in plain_step.stages[0].computes
    ]
    schedule = replace(
        plain_step, stages=(replace(plain_step.stages[0], computes=tuple(worst)), *plain_step.stages[1:])
    )
    start = formulation.start(schedule)
    assert formulation.program.violation(start) < 1e-6
    assert formulation.program.objective(start) <= check(problem, schedule, budget).objective


@pytest.mark.parametrize("recompute", [False, True])
def test_start_leaves_out_what_only_dominated_implementations_read(recompute: bool) -> None:
    """Backward 1 may read result 0, or for the same cost nothing: the program has no column for keeping 0."""
    problem = read_problem(chain(3, 1000))
    needy = problem.backward[0].implementations[0]
    backward = tuple(
        replace(
            b,
            implementations=(replace(needy, needs=()), replace(needy, needs=(0,)))
            if b.id == 1
            else tuple(replace(c, needs=()) for c in b.implementations),
        )
        for b in problem.backward
    )
    problem = replace(problem, backward=backward)
    step = plain.formulate(problem)
    kept = () if recompute else (0,)
    last = replace(step.stages[1], implementation=1, computes=(Compute(0),) if recompute else (), keep=kept)
    schedule = replace(step, stages=(replace(step.stages[0], keep=kept), last, *step.stages[2:]))
    budget = check(problem, schedule, 0).peak_bytes
    assert check(problem, schedule, budget).ok
    formulation = monet.formulate(problem, budget)
    start = formulation.start(schedule)
    assert formulation.program.violation(start) < 1e-6
    assert formulation.program.objective(start) == pytest.approx(unconstrained_cost(problem))


def test_where_a_parent_must_not_be_recomputed_nor_can_its_encoded_result() -> None:
    """Not even where only the parent says so, and both may run in place."""
    problem = random_problem(4, operators=4, in_place=1.0, encodings=1.0, unit_bytes=UNIT)
    encoded = next(f for f in problem.forward if f.encodes is not None and f.in_place is not None)
    forward = tuple(replace(f, recomputable=f.id != encoded.encodes) for f in problem.forward)
    problem = replace(problem, forward=forward)
    budget = budgets(problem, (0.9,))[0]
    assert_exact(problem, budget, best_objective(problem, budget))


@pytest.mark.parametrize("seed", range(50, 54))
def test_more_boundaries_bring_the_linear_relaxation_up_but_never_over_the_optimum(seed: int) -> None:
    problem = random_problem(seed, operators=7, skips=0.5)
    budget = budgets(problem, (0.45,))[0]
    bounds = []
    for boundaries in ([], [1], range(1, problem.stage_count)):
        program = monet.formulate(problem, budget, boundaries=boundaries).program
        relaxed = replace(program, integer=np.zeros_like(program.integer))
        solution = solve(relaxed, SolveOptions(gap=0.0), solver="highs")
        bounds.append(math.inf if solution.objective is None else solution.objective)
    optimum_with_all = solved(monet.formulate(problem, budget)).objective
    optimum_with_none = solved(monet.formulate(problem, budget, boundaries=[])).objective
    assert optimum_with_all == (None if optimum_with_none is None else pytest.approx(optimum_with_none))
    assert bounds[0] <= bounds[1] + 1e-6
    assert bounds[1] <= bounds[2] + 1e-6
    if optimum_with_none is not None:
        assert bounds[2] <= optimum_with_none + 1e-6
