"""Collectives that a plan runs: what an executor is held against."""

from __future__ import annotations

from collections import Counter
from functools import cache

from loadmaster.models.partition.placements import Placement, code
from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import sides
from loadmaster.models.partition.traffic import Traffic


def collectives(problem: PartitionProblem, splits: Splits) -> Counter[str]:
    """Number of collectives of each sort that one step runs."""
    traffic = Traffic(problem.axes)

    @cache
    def between(shape: tuple[int, ...], element_bytes: int, held: Placement, needed: Placement) -> Counter[str]:
        names = (hop.collective for hop in traffic.path(shape, element_bytes, held, needed))
        return Counter(name for name in names if name is not None)

    found: Counter[str] = Counter()
    placements = [tuple(map(code, parts)) for parts in splits.placements]
    for operator, chosen in zip(problem.operators, splits.strategies, strict=True):
        every = problem.strategies(operator)
        for side in sides(operator, [every[s] for s in chosen]):
            of, lies = problem.tensors[side.tensor], placements[side.tensor]
            held, needed = (side.placement, lies) if side.output else (lies, side.placement)
            found += between(of.shape, of.element_bytes, held, needed)
    return found
