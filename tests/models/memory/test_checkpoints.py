"""Segments that run again: plans on any graph, each result once more at most, and ends where little crosses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import planner
from loadmaster.models.memory import baselines, plain
from loadmaster.models.memory.checker import Check, check
from loadmaster.models.memory.checkpoints import at_narrow_places, run_again
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import (
    BackwardImplementation,
    BackwardOperator,
    ForwardOperator,
    Implementation,
    MemoryProblem,
)
from loadmaster.models.memory.unconstrained import unconstrained_cost
from tests.models.memory.instances import random_problem, with_live_sets

PLENTY = 10**15
UNIT = 1 << 20


def replayed(problem: MemoryProblem, segment: np.ndarray, again: int, budget: int = PLENTY) -> Check:
    ways = baselines.fastest_backward(problem)
    runs, _ = run_again(problem, ways, segment, again)
    return check(problem, complete(problem, budget, Decisions(tuple(map(frozenset, runs)), tuple(ways))), budget)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ends=st.sets(st.integers(1, 7)), again=st.integers(0, 8), once=st.booleans())
def test_any_segments_are_a_plan(seed: int, ends: set[int], again: int, once: bool) -> None:
    problem = random_problem(seed, operators=8, in_place=0.0, once_only=0.3 * once)
    segment = np.searchsorted(sorted(ends), np.arange(len(problem.forward)), side="right")
    verdict = replayed(problem, segment, again)
    assert verdict.violations == ()
    assert verdict.objective >= unconstrained_cost(problem) - 1e-9
    if again == 0:
        assert verdict.recomputed == 0


@pytest.mark.parametrize("again", range(5))
def test_a_chain_computes_what_is_inside_its_first_segments_again(again: int) -> None:
    """Four segments of ten: of each that runs again nine results are computed once more, and one is kept."""
    problem = read_problem(chain(40, 1000))
    segment = np.minimum(np.arange(41) // 10, 3)
    verdict = replayed(problem, segment, again)
    # The last result of a segment is read by the next one, but for that which the loss reads.
    assert verdict.recomputed == 9 * again + (1 if again == 4 else 0)
    if 0 < again < 4:
        assert verdict.peak_bytes == pytest.approx(plain.peak_bytes(problem) - 9000 * again, abs=1000)


def loops(layers: int, positions: int) -> MemoryProblem:
    """Layers with a loop inside, as Mamba's: each makes one wide result, and reads a slice of it at each position."""
    forward: list[ForwardOperator] = []
    reads: list[tuple[int, ...]] = []

    def add(op: str, inputs: tuple[int, ...], units: int, time_us: float = 1.0) -> int:
        ways = (Implementation(time_us, 0),)
        forward.append(ForwardOperator(len(forward), op, inputs, units * UNIT, (), 0, 0, ways, ways))
        reads.append(inputs)
        return len(forward) - 1

    x = add("embedding", (), 1)
    for _ in range(layers):
        wide = add("wide", (x,), positions, 4.0)
        states = []
        for _ in range(positions):
            states.append(add("state", (wide, *states[-1:]), 1))
        x = add("stack", tuple(states), 1)
    add("loss", (x,), 1)
    backward = tuple(
        BackwardOperator(k, f"{f.op} backward", UNIT, UNIT, 0, (BackwardImplementation(2.0, 0, f.inputs),))
        for k, f in enumerate(reversed(forward), start=1)
    )
    return MemoryProblem("loops", with_live_sets(forward), backward)


@pytest.mark.parametrize("number", [4, 8, 20])
def test_segments_end_between_layers(number: int) -> None:
    problem = loops(4, 12)
    segment = at_narrow_places(problem, number)
    ends = [i for i in range(1, len(segment)) if segment[i] != segment[i - 1]]
    assert ends
    assert segment[0] == 0 and all(segment[i] - segment[i - 1] in (0, 1) for i in range(1, len(segment)))
    between = {f.id for f in problem.forward if f.op in ("embedding", "stack")}
    assert all(any(abs(i - b) <= 1 for b in between) for i in ends)


@pytest.mark.slow
def test_a_model_of_loops_is_planned_no_worse_than_by_hand() -> None:
    """By hand: each layer but the last runs again."""
    problem = loops(6, 60)
    segment = np.cumsum([f.op == "wide" for f in problem.forward]) - 1
    by_hand = replayed(problem, np.maximum(segment, 0), 5)
    plan = planner.plan(problem, budget_bytes=by_hand.peak_bytes, time_limit_s=20)
    assert plan.objective <= by_hand.objective * (1 + 1e-9)
