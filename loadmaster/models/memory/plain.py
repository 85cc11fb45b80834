"""The plain training step: nothing recomputed, nothing encoded or in place, saved results kept until they are read.

This is what PyTorch does unasked. Its peak is what budgets such as "50 %" are taken of.
"""

from __future__ import annotations

from loadmaster.models.memory import baselines
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem


def formulate(problem: MemoryProblem) -> Schedule:
    """The plain step with the cheapest implementation of every operator."""
    ways = baselines.fastest_backward(problem)
    ids = baselines.forward_pass(problem, ways)
    runs = [baselines.run(problem, 0, ids), *([()] * len(ways))]
    return baselines.schedule(problem, runs, ways, kept=ids)


def peak_bytes(problem: MemoryProblem) -> int:
    """Peak of the plain step, by the checker."""
    return check(problem, formulate(problem), budget_bytes=0).peak_bytes
