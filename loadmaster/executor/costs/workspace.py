"""Workspace that is known without running the operator, by formulas of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import value_of
from loadmaster.executor.torch_private.fake_tensors import FakeTensor
from loadmaster.executor.torch_private.operators import OpOverload, pytree

_FORMULAS: dict[Any, Callable[..., int]] = {}


def register_workspace(op: OpOverload, formula: Callable[..., int]) -> None:
    """Set an operator's formula of its arguments, fake tensors for tensors; raises InputError if it has one."""
    if op in _FORMULAS:
        raise InputError("op", str(op), "already has a workspace formula", "Register each operator once.")
    _FORMULAS[op] = formula


def workspace_formula_bytes(node: fx.Node, device_type: str | None = None) -> int:
    """Bytes that an operator takes while it runs, by default on its tensors' type of device; 0 without a formula."""
    formula = _FORMULAS.get(node.target)
    if formula is None:
        return 0

    def argument(node: fx.Node) -> Any:
        value = value_of(node)
        if device_type is None:
            return value
        return pytree.tree_map_only(FakeTensor, lambda t: _on_device(t, device_type), value)

    return int(formula(*fx.node.map_arg(node.args, argument), **fx.node.map_arg(node.kwargs, argument)))


def _on_device(tensor: FakeTensor, device_type: str) -> Tensor:
    if tensor.device.type == device_type:
        return tensor
    with tensor.fake_mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device_type)
