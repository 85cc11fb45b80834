"""Real tensors of the shapes that a graph's fake ones have, to run an operator on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.executor.costs.fills import Fill, HostZeros, anything
from loadmaster.executor.costs.limits import limits_of
from loadmaster.executor.costs.traffic import tensors, value_of
from loadmaster.executor.torch_private.operators import pytree, schema_if_any


def materialize(node: fx.Node, device: torch.device) -> tuple[Sequence[Any], dict[str, Any]]:
    """Replace each fake tensor of the node's arguments by a real one: same shape, strides and dtype, on the device.
    Values are such as the operator accepts (:mod:`.limits`); raises NotUnderstoodError if these are not known."""
    args, kwargs = values_of(node)
    fills = iter(fills_of(node.target, args, kwargs))

    def real(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return device
        return filled(leaf, next(fills), device) if isinstance(leaf, Tensor) else leaf

    made: tuple[Sequence[Any], dict[str, Any]] = pytree.tree_map(real, (args, kwargs))
    return made


def values_of(node: fx.Node) -> tuple[Sequence[Any], dict[str, Any]]:
    """The node's arguments, with the values that tracing gave to other nodes."""
    args, kwargs = fx.node.map_arg((tuple(node.args), dict(node.kwargs)), value_of)
    return args, kwargs


def fills_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Fill]:
    """Choose the fill of each tensor of a call's arguments, in order; NotUnderstoodError if limits are not known."""
    schema = schema_if_any(target)
    declared = [] if schema is None else schema.arguments
    given = {**dict(zip((a.name for a in declared), args, strict=False)), **kwargs}
    limits = limits_of(target, {**{a.name: a.default_value for a in declared if a.has_default_value()}, **given})
    found: list[Fill] = []
    for name, value in given.items():
        limit = limits.get(name, anything)
        of_each: Iterable[tuple[Any, Any]] = [(value, limit)]
        if isinstance(limit, list):
            of_each = zip(value, limit, strict=True)
        for one, fill in of_each:
            found += [fill] * len(tensors(one))
    return found


def filled(like: Tensor, fill: Fill, device: torch.device) -> Tensor:
    """Make a real tensor with the shape, strides and dtype of a fake one, and fill it."""
    device = torch.device("cpu") if isinstance(fill, HostZeros) else device
    tensor = torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype, device=device)
    if tensor.numel():
        # A broadcast dimension is stored once.
        sizes = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        fill(tensor.as_strided(sizes, tensor.stride()), torch.Generator(device).manual_seed(0))
    return tensor
