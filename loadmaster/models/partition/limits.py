"""The budget of a partition problem: what is enough for the whole step, what is needed at least, budgets in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.partition.placements import held_elements, possible
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import lives
from loadmaster.solvers.program import IntArray


def over_time(problem: PartitionProblem, sizes: Sequence[int]) -> IntArray:
    """[operators] the bytes of all tensors that live then, each of so many."""
    changes = np.zeros(len(problem.operators) + 1, dtype=np.int64)
    for size, (first, last) in zip(sizes, lives(problem), strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return changes.cumsum()[:-1]


def whole_bytes(problem: PartitionProblem) -> int:
    """What the step takes on one GPU that does all of it."""
    sizes = [0 if n in problem.copied else tensor.size_bytes for n, tensor in enumerate(problem.tensors)]
    return int(over_time(problem, sizes).max())


def least_bytes(problem: PartitionProblem) -> int:
    """What a worker holds if every tensor is divided as far as it can be: no plan takes less."""
    sizes = tuple(axis.size for axis in problem.axes)
    known: dict[tuple[int, ...], int] = {}
    least = [0] * len(problem.tensors)
    for n, tensor in enumerate(problem.tensors):
        if n in problem.copied:  # it can lie as its original
            continue
        if tensor.shape not in known:
            most_divided = possible(tensor.shape, sizes, replicas=False)[0]
            known[tensor.shape] = held_elements(tensor.shape, most_divided, sizes)
        least[n] = known[tensor.shape] * tensor.element_bytes
    return int(over_time(problem, least).max())


def spread(problem: PartitionProblem, count: int) -> list[int]:
    """``count`` budgets from the least to the whole, ascending, evenly spread."""
    return sorted({int(b) for b in np.linspace(least_bytes(problem), whole_bytes(problem), count)})
