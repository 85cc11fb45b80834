"""The ``partition`` plan: the placement of every tensor, the strategies of every operator, and what moves for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.models.envelope import Plan
from loadmaster.models.fields import Bounds, Entries, Index, Size
from loadmaster.models.partition.problem import LARGEST_US, Part, PartitionProblem

_Us = Annotated[float, Bounds(ge=0, le=1e6 * LARGEST_US)]
CHECKED: Mapping[str, Any] = {
    "ok": bool,
    "peak_bytes": Index,
    "peak_at": str,
    "moved_bytes": Index,
    "transfer_us": _Us,
    "compute_us": _Us,
}


@dataclass(frozen=True)
class Redistribution:
    """The move of a tensor between where it is stored and what an operator makes (``output``) or needs. All workers
    together receive ``received_bytes``; its collectives add ``time_us`` to the step."""

    leave_out_defaults: ClassVar = True

    operator: Index
    tensor: Index
    received_bytes: Size
    time_us: _Us
    output: bool = False


@dataclass(frozen=True)
class Splits:
    """The choices of a plan, on every axis: the part of every tensor, the number of every operator's strategy."""

    placements: tuple[tuple[Part, ...], ...]
    strategies: tuple[tuple[Index, ...], ...]


@dataclass(frozen=True)
class PartitionInfeasibility:
    """The reason why no plan exists, and what to relax.

    Attributes:
        minimum_budget_bytes: no plan exists below this (proved).
        short_bytes: how much more the budget needs at least.
        where, largest: the operator at which a worker holds most even if everything is as divided as it can be, and the
            tensors that take most there.
        planned_budget_bytes: the least budget of which a plan was found; None if none was. Where it is the minimum, it
            is the least of all.
    """

    leave_out_defaults: ClassVar = True

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str
    largest: tuple[str, ...] = ()
    planned_budget_bytes: Size | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class PartitionPlan(Plan):
    """A checked answer to a partition problem (see :func:`loadmaster.models.partition.checker.check`); splits are None
    when infeasible. Redistributions are those that move anything, in the order of operators."""

    budget_bytes: Size
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    splits: Splits | None = None
    redistributions: tuple[Redistribution, ...] = ()
    infeasibility: PartitionInfeasibility | None = None

    kind: Literal["partition"] = "partition"


Role = Literal["replicate", "shard", "tensor"]
Roles = tuple[Role, ...]


def roles_of(problem: PartitionProblem, splits: Splits) -> Roles:
    """Role of every axis: it divides batches where an input of the step is divided along it."""
    placed = list(zip(problem.tensors, splits.placements, strict=True))
    found: list[Role] = []
    for axis in range(len(problem.axes)):
        divides_batch = any(tensor.role == "input" and parts[axis] != "R" for tensor, parts in placed)
        divides_parameters = any(tensor.role == "parameter" and parts[axis] != "R" for tensor, parts in placed)
        found.append("tensor" if not divides_batch else "shard" if divides_parameters else "replicate")
    return tuple(found)
