"""Segments that run again are found: no worse than by hand, and a plan where a budget leaves room for little else."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.models.hardware import hardware
from loadmaster.models.memory import baselines
from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.checkpoints import formulate
from loadmaster.models.memory.documents import read_problem
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.presets import transformer
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.effort import Effort
from loadmaster.planner.memory.checkpoint_search import checkpointed
from loadmaster.planner.memory.search import Search
from loadmaster.planner.options import PlanOptions
from loadmaster.solvers.program import IntArray
from tests.models.memory.instances import loops

LONG_S = 3600.0


def searched(problem: MemoryProblem, budget_bytes: int) -> Search:
    search = Search(problem, budget_bytes, Effort(PlanOptions(time_limit_s=LONG_S), None, None))
    checkpointed(search, LONG_S)
    return search


def by_hand(problem: MemoryProblem, segment: IntArray, again: int) -> MemoryCheck:
    ways = baselines.fastest_backward(problem)
    plenty = 1 << 60
    return check(problem, formulate(problem, plenty, ways, segment, again), plenty)


@pytest.mark.parametrize("again", [2, 5])
def test_layers_of_loops_run_again_as_by_hand(again: int) -> None:
    problem = loops(6, 30)
    segment = np.maximum(np.cumsum([f.op == "wide" for f in problem.forward]) - 1, 0)
    expected = by_hand(problem, segment, again)
    found = searched(problem, expected.peak_bytes)
    assert found.objective is not None and found.objective <= expected.objective * (1 + 1e-9)


def test_hundreds_of_operators_have_a_plan_in_little_memory() -> None:
    """Each operator runs again once at most: twice the forward pass."""
    problem = read_problem(transformer(32, 256, 256, 4, hardware("h100")))
    budget = int(1.15 * minimum_budget(problem).budget_bytes)
    found = searched(problem, budget)
    assert found.verdict is not None and found.verdict.peak_bytes <= budget
    assert 0 < found.verdict.recompute_us <= found.verdict.forward_us


def test_without_time_or_room_nothing_is_taken() -> None:
    problem = loops(3, 10)
    assert searched(problem, minimum_budget(problem).budget_bytes // 2).best is None
    search = Search(problem, 1 << 60, Effort(PlanOptions(), None, None))
    checkpointed(search, -1.0)
    assert search.best is None
