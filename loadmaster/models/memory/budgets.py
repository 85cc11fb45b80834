"""Budgets that say something about a problem: those between the least that may do and the most that is of use."""

from __future__ import annotations

from loadmaster.models.memory import plain
from loadmaster.models.memory.minimum import minimum_budget
from loadmaster.models.memory.problem import MemoryProblem


def spread(problem: MemoryProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from a little above the provable minimum to the plain step's peak.

    Where the problem states a budget that is less than this peak, they end there.
    """
    low, high = 1.1 * minimum_budget(problem).budget_bytes, plain.peak_bytes(problem)
    if problem.budget_bytes is not None:
        high = min(high, problem.budget_bytes)
    low = min(low, high)
    return [round(low + (high - low) * n / (count - 1)) for n in range(count)]
