"""The budget of a partition problem: what is enough for the whole step, what is needed at least, budgets in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from loadmaster.models.partition.placements import Mesh, possible
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import lives
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes, show_cost
from loadmaster.solvers.program import IntArray


def over_time(problem: PartitionProblem, sizes: Sequence[int]) -> IntArray:
    """Bytes of all tensors that live during each operator, [operators], each tensor of its size in ``sizes``."""
    changes = np.zeros(len(problem.operators) + 1, dtype=np.int64)
    for size, (first, last) in zip(sizes, lives(problem), strict=True):
        changes[first] += size
        changes[last + 1] -= size
    return changes.cumsum()[:-1]


def whole_over_time(problem: PartitionProblem) -> IntArray:
    """Bytes of all tensors that live during each operator, undivided: [operators]. Copies are placed as originals."""
    sizes = [0 if n in problem.copied else tensor.size_bytes for n, tensor in enumerate(problem.tensors)]
    return over_time(problem, sizes)


def whole_bytes(problem: PartitionProblem) -> int:
    """Bytes that the step takes on one GPU that does all of it."""
    return int(whole_over_time(problem).max())


def least_bytes(problem: PartitionProblem) -> int:
    """The budget for what a worker holds if every tensor is divided as far as it can be: no plan takes less."""
    mesh = Mesh(problem.axes)
    # A copy can be placed as its original.
    shapes = {n: tensor.shape for n, tensor in enumerate(problem.tensors) if n not in problem.copied}
    least = 0
    for worker in mesh.fullest:
        known = {
            shape: min(worker.held_elements(shape, p) for p in possible(shape, mesh.units, replicas=True))
            for shape in set(shapes.values())
        }
        sizes = [known[shapes[n]] * t.element_bytes if n in shapes else 0 for n, t in enumerate(problem.tensors)]
        least = max(least, math.ceil(int(over_time(problem, sizes).max()) / worker.memory_factor))
    return least


def least_us(problem: PartitionProblem) -> float:
    """Lower bound on the time of a step: all work divided along every axis that makes it quicker."""
    share = math.prod(min(axis.slowest[False], axis.slowest[True] / axis.units) for axis in problem.axes)
    return sum(operator.worker_us(share) for operator in problem.operators)


def spread(problem: PartitionProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from the least to what is enough for the whole on every worker, ascending."""
    most = whole_bytes(problem) / min(worker.memory_factor for worker in Mesh(problem.axes).workers)
    return sorted({int(b) for b in np.linspace(least_bytes(problem), most, count)})


def summary(problem: PartitionProblem) -> Summary:
    """Summarize a step before anything is planned."""
    whole, least = whole_bytes(problem), least_bytes(problem)
    compute_us = sum(operator.time_us for operator in problem.operators)
    by_role: dict[str, int] = defaultdict(int)
    for tensor in problem.tensors:
        by_role[tensor.role] += tensor.size_bytes
    rows = [
        ("whole", f"{show_bytes(whole)} ({whole} bytes) on one GPU, {show_cost(compute_us, 'us')} of compute"),
        ("least", f"{show_at_least(least)} ({least} bytes) on each GPU: no plan needs less"),
    ]
    for n, (role, size) in enumerate(sorted(by_role.items(), key=lambda item: -item[1])):
        rows.append(("" if n else "tensors", f"{show_bytes(size):>9}  {role}"))
    for n, axis in enumerate(problem.axes):
        words = f"{axis.name}: {axis.size} GPUs, {axis.gbps:g} GB/s each"
        words += f", {axis.latency_us:g} us" if axis.latency_us else ""
        for what, numbers in (
            ("speeds", axis.speeds),
            ("shares", () if axis.is_even else axis.shares),
            ("memory", axis.memory_factors),
        ):
            words += f", {what} {':'.join(f'{number:g}' for number in numbers)}" if numbers else ""
        rows.append(("" if n else "mesh", words))
    figures = {
        "whole_bytes": whole,
        "least_budget_bytes": least,
        "compute_us": compute_us,
        "bytes_by_role": dict(by_role),
    }
    return Summary(problem.name, tuple(rows), figures)
