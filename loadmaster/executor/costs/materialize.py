"""Real tensors of the shapes that a graph's fake ones have, to run an operator on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from loadmaster.executor.costs.fills import Fill, anything
from loadmaster.executor.costs.limits import Limits, limits_of
from loadmaster.executor.costs.traffic import value_of


def limits_of_node(node: fx.Node) -> Limits:
    """The limits of a node's arguments.

    Raises:
        NotUnderstoodError: they are not all known.
    """
    named = _by_name(node)
    return limits_of(node.target, {**_defaults(node), **named})


def materialize(node: fx.Node, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The node's arguments with a real tensor for every fake one: same shape, strides and dtype, on the device.

    Their values are such as the operator accepts (:mod:`.limits`).

    Raises:
        NotUnderstoodError: it is not known which it does.
    """
    limits = limits_of_node(node)
    made = {name: _real(value, limits.get(name, anything), device) for name, value in _by_name(node).items()}
    positional = list(made)[: len(node.args)]
    return tuple(made.pop(name) for name in positional), made


def _by_name(node: fx.Node) -> dict[str, Any]:
    """The given arguments, positional ones first."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    named = dict(zip(names, fx.node.map_arg(node.args, value_of), strict=False))
    return {**named, **fx.node.map_arg(node.kwargs, value_of)}


def _defaults(node: fx.Node) -> Mapping[str, Any]:
    schema = getattr(node.target, "_schema", None)
    return {} if schema is None else {a.name: a.default_value for a in schema.arguments if a.has_default_value()}


def _real(value: Any, limit: Any, device: torch.device) -> Any:
    """A value of the same form; a list of limits has one for each of a list of tensors."""
    if isinstance(limit, list):
        return [_real(one, of_one, device) for one, of_one in zip(value, limit, strict=True)]
    return pytree.tree_map(lambda leaf: _real_leaf(leaf, limit, device), value)


def _real_leaf(leaf: object, fill: Fill, device: torch.device) -> object:
    if isinstance(leaf, torch.device):
        return device
    if not isinstance(leaf, Tensor):
        return leaf
    tensor = torch.empty_strided(tuple(leaf.shape), leaf.stride(), dtype=leaf.dtype, device=device)
    if not tensor.numel():
        return tensor
    fill(tensor.as_strided(*_without_broadcasts(tensor)), torch.Generator(device).manual_seed(0))
    return tensor


def _without_broadcasts(tensor: Tensor) -> tuple[list[int], list[int]]:
    sizes = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return sizes, list(tensor.stride())
