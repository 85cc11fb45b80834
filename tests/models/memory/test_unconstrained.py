"""The step with memory to spare: no schedule is below it, and one has it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from loadmaster import planner
from loadmaster.models.memory import unconstrained
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import BackwardImplementation, Implementation, InPlace, MemoryProblem
from tests.models.memory.brute_force import best_objective
from tests.models.memory.instances import random_problem, seeds

TIB = 1 << 40


def dear_to_repeat(problem: MemoryProblem) -> MemoryProblem:
    """The same graph, where computing a result again costs more than anything can save."""

    def dear(choices: tuple[Implementation, ...]) -> tuple[Implementation, ...]:
        return tuple(replace(c, time_us=c.time_us + 100) for c in choices)

    return replace(
        problem,
        forward=tuple(replace(f, recompute_implementations=dear(f.recompute_implementations)) for f in problem.forward),
    )


def wild(seed: int) -> MemoryProblem:
    return random_problem(seed, operators=3 + seed % 2, skips=0.5, in_place=0.7, encodings=0.5 - 0.2 * (seed % 2))


def sharing(seed: int) -> MemoryProblem:
    """Backward operators with three ways each, which read encoded and overwritten results in common."""
    random = np.random.default_rng(seed)
    problem = random_problem(seed, operators=5, skips=0.3, in_place=0.8, encodings=0.7)
    count = len(problem.forward)

    def ways() -> tuple[BackwardImplementation, ...]:
        read = [sorted(map(int, random.choice(count, size=random.integers(0, 4), replace=False))) for _ in range(3)]
        return tuple(BackwardImplementation(float(random.integers(1, 15)), 0, tuple(ids)) for ids in read)

    return dear_to_repeat(
        replace(problem, backward=tuple(replace(b, implementations=ways()) for b in problem.backward))
    )


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 60)))
def test_no_schedule_is_below_it(seed: int) -> None:
    """Not even where computing again is cheap: every schedule of a tiny graph is tried."""
    problem = wild(seed)
    if len(problem.forward) > 6:
        pytest.skip("too many schedules to try them all")
    best = best_objective(problem, TIB)
    assert unconstrained.unconstrained_cost(problem) <= best + 1e-9


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 60)))
def test_it_is_the_best_schedule_there_is(seed: int) -> None:
    problem = dear_to_repeat(wild(seed))
    if len(problem.forward) > 6:
        pytest.skip("too many schedules to try them all")
    best = best_objective(problem, TIB)
    step = check(problem, unconstrained.formulate(problem), TIB)
    assert step.violations == ()
    assert unconstrained.unconstrained_cost(problem) == pytest.approx(best, rel=1e-12)
    assert step.objective == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_implementations_that_read_results_in_common_are_chosen_together(seed: int) -> None:
    """Against every combination of ways, each as the checker replays it."""
    problem = sharing(seed)
    least = min(
        check(problem, _without_repeats(problem, ways), TIB).objective
        for ways in itertools.product(*(range(len(b.implementations)) for b in problem.backward))
    )
    assert unconstrained.unconstrained_cost(problem) == pytest.approx(least, rel=1e-12)
    assert check(problem, unconstrained.formulate(problem), TIB).objective == pytest.approx(least, rel=1e-12)


def _without_repeats(problem: MemoryProblem, ways: tuple[int, ...]) -> Schedule:
    read = {i for b, way in zip(problem.backward, ways, strict=True) for i in b.implementations[way].needs}
    forward = frozenset(f.id for f in problem.forward if f.encodes is None or f.id in read)
    return complete(problem, TIB, Decisions((forward, *(frozenset[int]() for _ in ways)), ways))


def test_an_encoded_result_is_paid_for_once() -> None:
    """Three backward operators each save 4 by reading a mask that costs 10: together it is worth it, two are not."""
    assert unconstrained.unconstrained_cost(masked(readers=3)) == pytest.approx(30 + 10 + 3 * 6)
    assert unconstrained.unconstrained_cost(masked(readers=2)) == pytest.approx(30 + 2 * 10 + 6)


def masked(readers: int) -> MemoryProblem:
    """Three operators of 10 us; a mask of the first, for 10 us, spares its readers 4 of 10 us; without a choice: 6."""
    problem = read_problem(chain(2, 1000))
    run = (Implementation(10.0, 0),)
    forward = [replace(f, implementations=run, recompute_implementations=run) for f in problem.forward]
    mask = replace(forward[0], id=3, op="mask", inputs=(0,), live_inputs=(0,), live_bytes=1000, encodes=0)
    both = BackwardImplementation(6.0, 0, (3,)), BackwardImplementation(10.0, 0, (0,))
    other = (BackwardImplementation(6.0, 0, ()),)
    backward = [replace(b, implementations=both if b.id <= readers else other) for b in problem.backward]
    return replace(problem, forward=(*forward, mask), backward=tuple(backward))


def test_what_is_overwritten_is_not_read_for_less_than_it_costs() -> None:
    """Running in place saves 5 us; a backward operator would save 3 us by what is lost: it does not."""
    problem = read_problem(chain(2, 1000))
    run = (Implementation(10.0, 0),)
    forward = [replace(f, implementations=run, recompute_implementations=run) for f in problem.forward]
    forward[1] = replace(forward[1], in_place=InPlace(overwrites=0, time_delta_us=-5.0, workspace_delta_bytes=0))
    ways = BackwardImplementation(7.0, 0, (0,)), BackwardImplementation(10.0, 0, (1,))
    backward = [replace(b, implementations=ways if b.id == 1 else ways[1:]) for b in problem.backward]
    problem = replace(problem, forward=tuple(forward), backward=tuple(backward))
    assert unconstrained.unconstrained_cost(problem) == pytest.approx(30 - 5 + 3 * 10)
    cheaper = replace(backward[0], implementations=(replace(ways[0], time_us=4.0), ways[1]))
    problem = replace(problem, backward=(cheaper, *backward[1:]))
    assert unconstrained.unconstrained_cost(problem) == pytest.approx(30 + 4 + 2 * 10)


@pytest.mark.parametrize("seed", range(2))
def test_the_planner_reaches_it(seed: int) -> None:
    plan = planner.plan(sharing(seed), budget_bytes=TIB, gap=0.0, time_limit_s=30)
    assert plan.objective == plan.bound == pytest.approx(plan.unconstrained, rel=1e-12)
    assert (plan.status, plan.gap, plan.overhead_gap) == ("optimal", 0.0, 0.0)
