"""Wrapping of a model under a layout: ``DTensor`` parameters, hooks that redistribute, and ``fully_shard`` around."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from loadmaster.executor.partition.module_layout import Layout, Lies, Shape
from loadmaster.executor.torch_private.modules import buffers_of, parameters_of
from loadmaster.executor.torch_private.operators import pytree


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
                lies = layout.on_tensor_axes(layout.parameters[name]) if name in layout.parameters else replicated
                split = distribute_tensor(parameter.detach(), mesh, lies, src_data_rank=None)
                known[id(parameter)] = nn.Parameter(split, requires_grad=parameter.requires_grad)
            parameters_of(module)[own] = known[id(parameter)]
        for own, buffer in buffers_of(module).items():
            if buffer is not None:
                buffers_of(module)[own] = distribute_tensor(buffer, mesh, replicated, src_data_rank=None)
    return {id(new): names[old] for old, new in known.items()}


def _hook(model: nn.Module, layout: Layout, mesh: DeviceMesh) -> None:
    """Add hooks that bring inputs and outputs of modules with parameters to their planned placements."""
    replicated = (Replicate(),) * mesh.ndim

    def enter(lies: dict[Shape, Lies]) -> Any:
        def hook(module: nn.Module, args: Any) -> Any:
            return pytree.tree_map_only(DTensor, lambda x: _moved(x, lies), args)

        return hook

    def leave(lies: dict[Shape, Lies]) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return pytree.tree_map_only(DTensor, lambda x: _moved(x, lies), output)

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


def _moved(x: DTensor, lies: dict[Shape, Lies]) -> DTensor:
    """Redistribute a tensor to its planned placement; without a plan, terms of sums are added up."""
    wanted = lies.get(tuple(x.shape))
    if wanted is None:
        wanted = tuple(Replicate() if placement.is_partial() else placement for placement in x.placements)
    return x if tuple(x.placements) == tuple(wanted) else x.redistribute(placements=wanted)


def _fully_shard(model: nn.Module, layout: Layout, mesh: DeviceMesh, names: dict[int, str]) -> None:
    """Shard repeated blocks one by one, so that one is gathered while another computes; then the rest."""
    over = mesh["shard"] if mesh["replicate"].size() == 1 else mesh["replicate", "shard"]

    def along(parameter: nn.Parameter) -> Shard:
        name = names[id(parameter)]
        return Shard(layout.sharded_along(name) if name in layout.parameters else 0)

    for block in _blocks(model):
        fully_shard(block, mesh=over, shard_placement_fn=along)
    fully_shard(model, mesh=over, shard_placement_fn=along)


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
