"""Chen's sqrt(n) checkpointing: keep what crosses segment boundaries, recompute each segment once in the backward pass.

Source: [Chen16] algorithm 3, on a graph instead of a chain: what crosses a boundary is every result that a later
segment reads. Segments are of about equal bytes, and their number is searched on a grid around sqrt(n), as there. It
takes no budget: it is one point.
"""

from __future__ import annotations

import math

import numpy as np

from loadmaster.models.memory import baselines
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.checkpoints import run_again
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import IntArray

# Numbers of segments that are tried, as powers of two of sqrt(n).
_GRID = np.arange(-2.0, 2.1, 0.5)


def formulate(problem: MemoryProblem) -> Schedule:
    """The schedule of the number of segments with the least peak, and of those with equal peaks the least objective."""
    count = len(problem.forward)
    numbers = sorted({min(count, max(1, round(math.sqrt(count) * 2.0**power))) for power in _GRID})
    schedules = [in_segments(problem, number) for number in numbers]
    return min(schedules, key=lambda s: _peak_and_objective(problem, s))


def _peak_and_objective(problem: MemoryProblem, schedule: Schedule) -> tuple[int, float]:
    verdict = check(problem, schedule, budget_bytes=0)
    return verdict.peak_bytes, verdict.objective


def in_segments(problem: MemoryProblem, number: int) -> Schedule:
    """The schedule with about ``number`` segments."""
    ways = baselines.fastest_backward(problem)
    runs, kept = run_again(problem, ways, _segments(problem, number), number)
    return baselines.schedule(problem, [baselines.run(problem, k, ids) for k, ids in enumerate(runs)], ways, kept)


def _segments(problem: MemoryProblem, number: int) -> IntArray:
    """The segment of every forward operator [V]: consecutive, of about equal bytes."""
    sizes = problem.output_bytes.astype(np.float64)
    middle = np.cumsum(sizes) - sizes / 2
    share = middle / max(float(sizes.sum()), 1.0)
    return np.minimum((share * number).astype(np.int64), number - 1)
