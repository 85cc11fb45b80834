"""What a collective does to buffers of integers, said once more for tests, in units of a part of a piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.problem import CollectiveProblem

Buffers = list[NDArray[np.int64]]
UNWRITTEN = -(1 << 50)


def before(problem: CollectiveProblem, units: int, seed: int = 0) -> Buffers:
    """Inputs; ``units`` to a piece. Ranks without input have none."""
    n, chance = problem.topology.rank_count, np.random.default_rng(seed)
    pieces = dict.fromkeys(range(n), 1)
    match problem.collective:
        case "reduce_scatter" | "allreduce" | "alltoall":
            pieces = dict.fromkeys(range(n), n)
        case "broadcast" | "scatter":
            pieces = {r: 0 for r in range(n)} | {problem.root or 0: n if problem.collective == "scatter" else 1}
    return [chance.integers(1, 1 << 30, pieces[r] * units) for r in range(n)]


def after(problem: CollectiveProblem, inputs: Buffers, units: int) -> Buffers:
    """Outputs."""
    n, root, nothing = problem.topology.rank_count, problem.root or 0, np.zeros(0, np.int64)

    def part(rank: int, piece: int) -> NDArray[np.int64]:
        return inputs[rank][piece * units : (piece + 1) * units]

    match problem.collective:
        case "allgather":
            return [np.concatenate(inputs)] * n
        case "allreduce":
            return [np.sum(inputs, axis=0)] * n
        case "reduce_scatter":
            return [np.sum([part(s, r) for s in range(n)], axis=0) for r in range(n)]
        case "alltoall":
            return [np.concatenate([part(s, r) for s in range(n)]) for r in range(n)]
        case "broadcast":
            return [inputs[root]] * n
        case "reduce":
            return [np.sum(inputs, axis=0) if r == root else nothing for r in range(n)]
        case "scatter":
            return [part(root, r) for r in range(n)]
        case "gather":
            return [np.concatenate(inputs) if r == root else nothing for r in range(n)]
    raise AssertionError(problem.collective)
