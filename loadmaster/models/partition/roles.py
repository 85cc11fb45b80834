"""Roles of the axes of a mesh, where a model's own modules are split.

``replicate``   batches are divided, parameters are stored whole: their gradients are summed
``shard``       batches are divided, and parameters where they are stored
``tensor``      parameters are divided, and what is computed with them
"""

from __future__ import annotations

from typing import Literal

from loadmaster.models.partition.plan import Splits
from loadmaster.models.partition.problem import PartitionProblem

Role = Literal["replicate", "shard", "tensor"]


def roles_of(problem: PartitionProblem, splits: Splits) -> tuple[Role, ...]:
    """Role of every axis: it divides batches where an input of the step is divided along it."""
    placed = list(zip(problem.tensors, splits.placements, strict=True))
    found: list[Role] = []
    for axis in range(len(problem.axes)):
        divides_batch = any(tensor.role == "input" and parts[axis] != "R" for tensor, parts in placed)
        divides_parameters = any(tensor.role == "parameter" and parts[axis] != "R" for tensor, parts in placed)
        found.append("tensor" if not divides_batch else "shard" if divides_parameters else "replicate")
    return tuple(found)
