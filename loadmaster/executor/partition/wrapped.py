"""Layout of a model's modules under a plan, and wrapping under it: ``DTensor``s, hooks that redistribute, FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement as DPlacement

from loadmaster.executor.partition.traced import TracedStep
from loadmaster.executor.torch_private.modules import buffers_of, parameters_of
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.models.partition.placements import WHOLE, Placement, code
from loadmaster.models.partition.plan import Role, Roles, Splits, roles_of
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.partition.sides import sides

Shape = tuple[int, ...]
AxisPlacements = tuple[DPlacement, ...]


@dataclass(frozen=True)
class Layout:
    """Placements of one plan, by parameter and by module.

    Attributes:
        is_gathered_once: parameters stay whole from the forward pass to the backward pass.
        split_inputs: leaves of the batch that are split along their first dimension, on axes that divide batches.
        entering: module -> shape of an input, without what other workers have of the batch -> the placement on the
            tensor axes that its operators need.
        leaving: the same for outputs.
    """

    roles: Roles
    sizes: tuple[int, ...]
    parameters: dict[str, Placement]
    split_inputs: frozenset[int]
    is_gathered_once: bool
    entering: dict[str, dict[Shape, AxisPlacements]] = field(default_factory=dict)
    leaving: dict[str, dict[Shape, AxisPlacements]] = field(default_factory=dict)

    def axes(self, *roles: Role) -> list[int]:
        """Axes with one of these roles, in order."""
        return [axis for axis, role in enumerate(self.roles) if role in roles]

    def on_tensor_axes(self, placement: Placement) -> AxisPlacements:
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
        any(
            problem.tensors[original].role == "parameter" and placements[copy] != placements[original]
            for copy, original in problem.copied.items()
        ),
    )
    # A copy has the placement of its original on tensor axes; modules do not know of it.
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
            places = placements[tensor] if side.output else side.placement
            if tensor in kept or (not side.output and made_in.get(tensor) == operator.module):
                continue
            shape = _share(problem.tensors[tensor].shape, placements[tensor], sizes, divided)
            if side.output:
                found.leaving.setdefault(operator.module, {})[shape] = found.on_tensor_axes(places)
            else:
                found.entering.setdefault(operator.module, {}).setdefault(shape, found.on_tensor_axes(places))
    return found


def _share(shape: Shape, placement: Placement, sizes: Sequence[int], axes: Sequence[int]) -> Shape:
    found = list(shape)
    for axis in axes:
        if placement[axis] >= 0:
            found[placement[axis]] //= sizes[axis]
    return tuple(found)


def mesh_of(layout: Layout, device_type: str) -> DeviceMesh:
    """Mesh of the ranks by role: ``replicate`` and ``shard``, one dimension each, then one for each tensor axis."""
    order = [*layout.axes("replicate"), *layout.axes("shard"), *layout.axes("tensor")]
    ranks = torch.arange(torch.Size(layout.sizes).numel()).reshape(layout.sizes).permute(order)
    counts = [torch.Size(layout.sizes[axis] for axis in layout.axes(role)).numel() for role in ("replicate", "shard")]
    tensor = layout.axes("tensor")
    names = ("replicate", "shard", *(f"tensor{n}" for n in range(len(tensor))))
    shape = (*counts, *(layout.sizes[axis] for axis in tensor))
    return DeviceMesh(device_type, ranks.reshape(shape), mesh_dim_names=names)


def wrap(model: nn.Module, layout: Layout, mesh: DeviceMesh) -> None:
    """Split a model over a mesh, in place."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if layout.axes("tensor"):
        names = _as_dtensors(model, layout, _tensor_mesh(mesh), names)
        _hook(model, layout, _tensor_mesh(mesh))
    if mesh["replicate"].size() * mesh["shard"].size() > 1:
        _fully_shard(model, layout, mesh, names)
    else:
        for parameter in filter(lambda one: one.requires_grad, model.parameters()):
            parameter.register_post_accumulate_grad_hook(_as_its_parameter)  # type: ignore[no-untyped-call]


def _tensor_mesh(mesh: DeviceMesh) -> DeviceMesh:
    assert mesh.mesh_dim_names is not None
    return mesh[mesh.mesh_dim_names[2:]]


def _as_dtensors(model: nn.Module, layout: Layout, mesh: DeviceMesh, names: dict[int, str]) -> dict[int, str]:
    """Distribute parameters, and replicate buffers; return names of the new ones. Shared parameters stay shared."""
    known: dict[int, nn.Parameter] = {}
    replicated = (Replicate(),) * mesh.ndim
    for module in model.modules():
        for own, parameter in parameters_of(module).items():
            if parameter is None:
                continue
            if id(parameter) not in known:
                name = names[id(parameter)]
                places = layout.on_tensor_axes(layout.parameters[name]) if name in layout.parameters else replicated
                split = distribute_tensor(parameter.detach(), mesh, places, src_data_rank=None)
                known[id(parameter)] = nn.Parameter(split, requires_grad=parameter.requires_grad)
            parameters_of(module)[own] = known[id(parameter)]
        for own, buffer in buffers_of(module).items():
            if buffer is not None:
                buffers_of(module)[own] = distribute_tensor(buffer, mesh, replicated, src_data_rank=None)
    return {id(new): names[old] for old, new in known.items()}


def _hook(model: nn.Module, layout: Layout, mesh: DeviceMesh) -> None:
    """Add hooks that bring inputs and outputs of modules with parameters to their planned placements."""
    replicated = (Replicate(),) * mesh.ndim

    def enter(places: dict[Shape, AxisPlacements]) -> Any:
        def hook(module: nn.Module, args: Any) -> Any:
            return pytree.tree_map_only(DTensor, lambda x: _moved(x, places), args)

        return hook

    def leave(places: dict[Shape, AxisPlacements]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return pytree.tree_map_only(DTensor, lambda x: _moved(x, places), output)

        return hook

    def distribute(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda x: DTensor.from_local(x, mesh, replicated), (args, kwargs))

    def gather(module: nn.Module, args: Any, output: Any) -> Any:
        return pytree.tree_map_only(DTensor, DTensor.full_tensor, output)

    for path, module in model.named_modules():
        if any(parameter is not None for parameter in parameters_of(module).values()):
            module.register_forward_pre_hook(enter(layout.entering.get(path, {})))
            module.register_forward_hook(leave(layout.leaving.get(path, {})))
    model.register_forward_pre_hook(distribute, prepend=True, with_kwargs=True)
    model.register_forward_hook(gather)


def _moved(x: DTensor, places: dict[Shape, AxisPlacements]) -> DTensor:
    """Redistribute a tensor to its planned placement; without a plan, terms of sums are added up."""
    wanted = places.get(tuple(x.shape))
    if wanted is None:
        wanted = tuple(Replicate() if placement.is_partial() else placement for placement in x.placements)
    return x if tuple(x.placements) == tuple(wanted) else x.redistribute(placements=wanted)


def _fully_shard(model: nn.Module, layout: Layout, mesh: DeviceMesh, names: dict[int, str]) -> None:
    """Shard repeated blocks one by one, so that one is gathered while another computes; then the rest."""
    over = mesh["shard"] if mesh["replicate"].size() == 1 else mesh["replicate", "shard"]
    again = not layout.is_gathered_once

    def along(parameter: nn.Parameter) -> Shard:
        name = names[id(parameter)]
        return Shard(layout.sharded_along(name) if name in layout.parameters else 0)

    for block in _blocks(model):
        fully_shard(block, mesh=over, shard_placement_fn=along, reshard_after_forward=again)
    fully_shard(model, mesh=over, shard_placement_fn=along, reshard_after_forward=again)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Members with parameters of the outermost ``ModuleList`` and ``Sequential`` modules."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            yield from (block for block in child if next(block.parameters(), None) is not None)
        else:
            yield from _blocks(child)


def _as_its_parameter(parameter: Tensor) -> None:
    """Redistribute a gradient to the placement of its parameter; terms of a sum are added up."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)
