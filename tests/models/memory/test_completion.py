"""Completion: the best schedule of given decisions, held against trying every implementation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.hardware import HostLink
from loadmaster.models.memory import chen, gist, monet, plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import Decisions, complete, stored_at
from loadmaster.models.memory.plan import Compute, Fetch, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem, Objective
from loadmaster.solvers.process import solve
from loadmaster.solvers.solution import SolveOptions
from tests.models.memory.decisions import decisions_of
from tests.models.memory.instances import budgets, random_problem

PLENTY = 1 << 60
OBJECTIVES: tuple[Objective, ...] = ("time", "energy")
BASELINES = (plain.formulate, chen.formulate, gist.formulate)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), method=st.sampled_from(BASELINES), tight=st.booleans())
def test_completing_a_schedule_never_costs_more(
    seed: int, method: Callable[[MemoryProblem], Schedule], tight: bool
) -> None:
    """Within a budget that the schedule itself holds, too."""
    problem = random_problem(seed, operators=7, in_place=0.5, encodings=0.4, objective=OBJECTIVES[seed % 2])
    schedule = method(problem)
    before = check(problem, schedule, PLENTY)
    budget = before.peak_bytes if tight else PLENTY
    completed = complete(problem, budget, decisions_of(schedule))
    after = check(problem, completed, budget)
    assert after.violations == ()
    assert after.objective <= before.objective + 1e-9
    assert after.recomputed <= before.recomputed


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_completing_twice_changes_nothing(seed: int) -> None:
    problem = random_problem(seed, operators=7, in_place=0.5, encodings=0.4)
    once = complete(problem, PLENTY, decisions_of(chen.formulate(problem)))
    assert complete(problem, PLENTY, decisions_of(once)) == once


@pytest.mark.parametrize("seed", range(8))
def test_the_best_schedule_stays_the_best(seed: int) -> None:
    """An exact optimum completes to an optimum, in the same budget."""
    problem = random_problem(seed, operators=5, in_place=0.6, encodings=0.5, choices=3, objective=OBJECTIVES[seed % 2])
    budget = budgets(problem, (0.5,))[0]
    exact = monet.formulate(problem, budget)
    solution = solve(exact.program, SolveOptions(gap=0.0), solver="highs")
    if solution.values is None:
        budget = budgets(problem, (1.0,))[0]
        exact = monet.formulate(problem, budget)
        solution = solve(exact.program, SolveOptions(gap=0.0), solver="highs")
    assert solution.values is not None
    verdict = check(problem, complete(problem, budget, decisions_of(exact.schedule(solution.values))), budget)
    assert verdict.violations == ()
    assert verdict.objective == pytest.approx(solution.objective)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), fraction=st.floats(0.3, 1.0))
def test_implementations_are_the_best_of_all_that_fit(seed: int, fraction: float) -> None:
    """Keeps and computes as completed; every other choice of implementations and places is dearer or does not fit."""
    problem = random_problem(seed, operators=4, in_place=0.6, encodings=0.4)
    budget = budgets(problem, (fraction,))[0]
    completed = complete(problem, budget, decisions_of(chen.formulate(problem)))
    verdict = check(problem, completed, budget)
    if not verdict.ok:
        return
    best = math.inf
    for t, stage in enumerate(completed.stages):
        for computes in itertools.product(*(_ways(problem, t, c.forward) for c in stage.computes)):
            tried = check(problem, _with_stage(completed, t, replace(stage, computes=computes)), budget)
            if tried.ok:
                best = min(best, tried.objective)
    assert verdict.objective == pytest.approx(best)


def _ways(problem: MemoryProblem, t: int, i: int) -> list[Compute]:
    f = problem.forward[i]
    offered = f.implementations if t == 0 else f.recompute_implementations
    places = [False] if f.in_place is None else [False, True]
    return [Compute(i, n, p) for n in range(len(offered)) for p in places]


def _with_stage(schedule: Schedule, t: int, stage: Stage) -> Schedule:
    return replace(schedule, stages=(*schedule.stages[:t], stage, *schedule.stages[t + 1 :]))


def test_useless_computes_and_keeps_go() -> None:
    problem = random_problem(1, operators=5, in_place=0.0, encodings=0.0, skips=0.0)
    step = plain.formulate(problem)
    everything = frozenset(range(len(problem.forward)))
    decisions = replace(decisions_of(step), computes=(everything,) * problem.stage_count, keep={})
    completed = complete(problem, PLENTY, decisions)
    assert check(problem, completed, PLENTY).violations == ()
    needs = [set(b.implementations[n].needs) for b, n in zip(problem.backward, decisions.backward, strict=True)]
    for stage, wanted in zip(completed.stages[1:], needs, strict=True):
        computed = {c.forward for c in stage.computes}
        # Everything may be computed in each stage, so nothing is ever kept, and only ancestors of needs are computed.
        assert not stage.keep
        assert computed == {i for i in everything if wanted and i <= max(wanted)}


def test_fetches_that_nobody_wants_are_not_made() -> None:
    link = HostLink(to_host_gbps=1.0, from_host_gbps=1.0)
    problem = random_problem(1, operators=5, in_place=0.0, encodings=0.0, skips=0.0, host_link=link)
    step = decisions_of(plain.formulate(problem))
    readers = {
        i: [k for k, n in enumerate(step.backward, 1) if i in problem.backward[k - 1].implementations[n].needs]
        for i in range(len(problem.forward))
    }
    wanted = next(i for i, stages in readers.items() if stages and stages[0] > 1)
    unread = next(i for i, stages in readers.items() if not stages)
    stage = readers[wanted][0]
    decisions = replace(
        step,
        offload=(wanted, unread),
        fetches={stage: (Fetch(wanted, stage - 1), Fetch(unread, stage - 1)), stage - 1: (Fetch(unread, 1),)},
    )
    completed = complete(problem, PLENTY, decisions)
    assert check(problem, completed, PLENTY).violations == ()
    assert completed.offload == (wanted,)
    assert [f.forward for s in completed.stages for f in s.fetches] == [wanted]
    assert wanted not in completed.stages[0].keep
    assert wanted in stored_at(completed, stage)
    assert wanted not in stored_at(completed, stage - 1)


def test_bytes_under_way_leave_less_room() -> None:
    """While a result is coming back, the stages it passes take implementations that fit beside it."""
    link = HostLink(to_host_gbps=1.0, from_host_gbps=1.0)
    for seed in range(20):
        problem = random_problem(seed, operators=5, in_place=0.0, encodings=0.0, skips=0.0, choices=3, host_link=link)
        decisions = decisions_of(plain.formulate(problem))
        chosen = [b.implementations[n] for b, n in zip(problem.backward, decisions.backward, strict=True)]
        readers = {i: [k for k, c in enumerate(chosen, 1) if i in c.needs] for i in range(len(problem.forward))}
        i = max(readers, key=lambda i: min(readers[i], default=0))
        if not readers[i] or readers[i][0] < 3:
            continue
        k = readers[i][0]
        travelling = replace(decisions, offload=(i,), fetches={k: (Fetch(i, 1),)})
        smallest = check(problem, complete(problem, 0, travelling), PLENTY).peak_bytes
        completed = complete(problem, smallest, travelling)
        assert check(problem, completed, smallest).violations == ()


def test_decisions_read_back() -> None:
    stages = (
        Stage((Compute(0), Compute(1)), None, (0,)),
        Stage((), 1, (), ()),
        Stage((Compute(0),), 0, (), (Fetch(1, 1),)),
    )
    assert decisions_of(Schedule(stages, (1,))) == Decisions(
        computes=(frozenset({0, 1}), frozenset(), frozenset({0})),
        backward=(1, 0),
        offload=(1,),
        fetches={2: (Fetch(1, 1),)},
        keep={0: frozenset({0}), 1: frozenset(), 2: frozenset()},
    )
    assert stored_at(Schedule(stages, (1,)), 0) == frozenset()
    assert stored_at(Schedule(stages, (1,)), 1) == {0}
    assert stored_at(Schedule(stages, (1,)), 2) == {1}
