"""The budget of an index problem: what is enough for the quickest everywhere, what is needed at least, and between."""

from __future__ import annotations

import numpy as np

from loadmaster.models.index.options import options
from loadmaster.models.index.problem import IndexProblem


def whole_bytes(problem: IndexProblem) -> int:
    """What the fullest host needs if every shard gets what serves it quickest."""
    return max(_held(problem, last=True))


def least_by_host(problem: IndexProblem) -> list[int]:
    """What each host needs if every shard gets what takes least memory: exact, no host does with less."""
    return _held(problem, last=False)


def least_bytes(problem: IndexProblem) -> int:
    """The smallest budget under which there is a plan, where hosts have as much."""
    return max(least_by_host(problem))


def spread(problem: IndexProblem, count: int) -> list[int]:
    """``count`` budgets from the least to the whole, ascending, evenly spread."""
    return sorted({int(b) for b in np.linspace(least_bytes(problem), whole_bytes(problem), count)})


def _held(problem: IndexProblem, *, last: bool) -> list[int]:
    held = [0] * len(problem.hosts)
    for s, shard in enumerate(problem.shards):
        held[shard.host] += options(problem, s)[-1 if last else 0].size_bytes
    return held
