"""Layout of a model's modules under a plan: placements of parameters, and of tensors that enter and leave modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as DPlacement

from loadmaster.executor.partition.traced import TracedStep
from loadmaster.models.partition.placements import WHOLE, Placement, code
from loadmaster.models.partition.plan import Role, Splits, roles_of
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import sides

Shape = tuple[int, ...]
Lies = tuple[DPlacement, ...]


@dataclass(frozen=True)
class Layout:
    """Placements of one plan, by parameter and by module.

    Attributes:
        roles: of the axes.
        sizes: of the axes.
        parameters: name -> its placement on every axis.
        split_inputs: leaves of the batch that are split along their first dimension, on axes that divide batches.
        entering: module -> shape of an input, without what other workers have of the batch -> the placement on the
            tensor axes that its operators need.
        leaving: the same for outputs.
    """

    roles: tuple[Role, ...]
    sizes: tuple[int, ...]
    parameters: dict[str, Placement]
    split_inputs: frozenset[int]
    entering: dict[str, dict[Shape, Lies]] = field(default_factory=dict)
    leaving: dict[str, dict[Shape, Lies]] = field(default_factory=dict)

    def axes(self, *roles: Role) -> list[int]:
        """Axes with one of these roles, in order."""
        return [axis for axis, role in enumerate(self.roles) if role in roles]

    def on_tensor_axes(self, placement: Placement) -> Lies:
        """Placement on the tensor axes, in the words of ``DTensor``."""
        parts = [placement[axis] for axis in self.axes("tensor")]
        return tuple(Replicate() if part == WHOLE else Shard(part) for part in parts)

    def sharded_along(self, name: str) -> int:
        """Dimension along which a parameter is divided on the axes that shard; the first where it is not divided."""
        parts = {self.parameters[name][axis] for axis in self.axes("shard")} - {WHOLE}
        return parts.pop() if parts else 0


def layout_of(traced: TracedStep, problem: PartitionProblem, splits: Splits) -> Layout:
    """Work out the layout that a plan gives the modules of a traced step."""
    placements = [tuple(map(code, parts)) for parts in splits.placements]
    sizes = tuple(axis.size for axis in problem.axes)
    roles = roles_of(problem, splits)
    divided = [axis for axis, role in enumerate(roles) if role != "tensor"]
    found = Layout(
        roles,
        sizes,
        {name: placements[n] for name, n in traced.parameters.items()},
        frozenset(leaf for leaf, n in traced.inputs.items() if any(placements[n][axis] == 0 for axis in divided)),
    )
    # A copy has the placement of its original; modules do not know of it.
    operators = [
        (operator, chosen)
        for operator, chosen in zip(problem.operators, splits.strategies, strict=True)
        if not problem.is_copy(operator)
    ]
    made_in = {t: o.module for o, _ in operators for t in o.outputs}
    kept = {n for n, tensor in enumerate(problem.tensors) if tensor.role in ("parameter", "state")}
    for operator, chosen in operators[: traced.graph.forward_count]:
        if operator.module is None:
            continue
        every = problem.strategies(operator)
        for side in sides(operator, [every[s] for s in chosen]):
            tensor = problem.original(side.tensor)
            lies = placements[tensor] if side.output else side.placement
            if tensor in kept or (not side.output and made_in.get(tensor) == operator.module):
                continue
            shape = _share(problem.tensors[tensor].shape, placements[tensor], sizes, divided)
            if side.output:
                found.leaving.setdefault(operator.module, {})[shape] = found.on_tensor_axes(lies)
            else:
                found.entering.setdefault(operator.module, {}).setdefault(shape, found.on_tensor_axes(lies))
    return found


def _share(shape: Shape, placement: Placement, sizes: Sequence[int], axes: Sequence[int]) -> Shape:
    found = list(shape)
    for axis in axes:
        if placement[axis] >= 0:
            found[placement[axis]] //= sizes[axis]
    return tuple(found)
