"""Segments that run again: plans on any graph, each result once more at most, and ends where little crosses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.models.memory import baselines, plain
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.checkpoints import at_narrow_places, formulate
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.presets import chain
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained_cost
from tests.models.memory.instances import loops, random_problem

PLENTY = 10**15


def replayed(problem: MemoryProblem, segment: np.ndarray, again: int) -> MemoryCheck:
    ways = baselines.fastest_backward(problem)
    return check(problem, formulate(problem, PLENTY, ways, segment, again), PLENTY)


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


@pytest.mark.parametrize("number", [4, 8, 20])
def test_segments_end_between_layers(number: int) -> None:
    problem = loops(4, 12)
    segment = at_narrow_places(problem, number)
    ends = [i for i in range(1, len(segment)) if segment[i] != segment[i - 1]]
    assert ends
    assert segment[0] == 0 and all(segment[i] - segment[i - 1] in (0, 1) for i in range(1, len(segment)))
    between = {f.id for f in problem.forward if f.op in ("embedding", "stack")}
    assert all(any(abs(i - b) <= 1 for b in between) for i in ends)
