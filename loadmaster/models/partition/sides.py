"""What operators need and make under a strategy for each axis, and how long tensors live."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadmaster.models.partition.placements import Placement, code
from loadmaster.models.partition.problem import LASTING, Operator, PartitionProblem, Strategy
from loadmaster.models.partition.traffic import Halos


@dataclass(frozen=True)
class Side:
    """What an operator needs of one input, or makes of one output."""

    tensor: int
    placement: Placement
    halos: Halos = ()
    output: bool = False


def sides(operator: Operator, strategies: Sequence[Strategy]) -> Iterator[Side]:
    """What an operator needs and makes under one strategy for each axis."""
    for slot, tensor in enumerate(operator.inputs):
        needs = [strategy.inputs[slot] for strategy in strategies]
        halos = {(code(need.part), need.before, need.after) for need in needs if need.before or need.after}
        yield Side(tensor, tuple(code(need.part) for need in needs), tuple(sorted(halos)))
    for slot, tensor in enumerate(operator.outputs):
        yield Side(tensor, tuple(code(strategy.outputs[slot]) for strategy in strategies), output=True)


def lives(problem: PartitionProblem) -> list[tuple[int, int]]:
    """For every tensor the first and the last operator while which it lies in memory."""
    count = len(problem.operators)
    made, read = [0] * len(problem.tensors), [-1] * len(problem.tensors)
    for n, operator in enumerate(problem.operators):
        for tensor in operator.outputs:
            made[tensor], read[tensor] = n, max(read[tensor], n)
        for tensor in operator.inputs:
            read[tensor] = n
    return [
        (0, count - 1) if tensor.role in LASTING else (first, last)
        for tensor, first, last in zip(problem.tensors, made, read, strict=True)
    ]


def runs_where_its_tensors_lie(problem: PartitionProblem, operator: Operator) -> bool:
    """Whether it is elementwise, over tensors of one shape: then it has no strategy of its own."""
    shapes = {problem.tensors[t].shape for t in (*operator.inputs, *operator.outputs)}
    return problem.signatures[operator.signature].elementwise and len(shapes) == 1
