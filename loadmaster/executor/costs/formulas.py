"""Whole numbers of single operators, such as bytes of workspace, by formulas of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import value_of
from loadmaster.executor.torch_private.fake_tensors import FakeTensor
from loadmaster.executor.torch_private.operators import OpOverload, pytree

Formula = Callable[..., int]


class OperatorFormulas:
    """A whole number for a node of a graph, by the formula of its operator: ``formulas(node)``.

    Args:
        what: name of what the formulas give, for messages: ``workspace formula``.
        otherwise: the number of operators without a formula.
    """

    def __init__(self, what: str, otherwise: int) -> None:
        self._what, self._otherwise = what, otherwise
        self._formulas: dict[Any, Formula] = {}

    def register(self, op: OpOverload, formula: Formula) -> None:
        """Set an operator's formula, which gets the operator's arguments, fake tensors for tensors.

        Raises:
            InputError: the operator has one.
        """
        if op in self._formulas:
            raise InputError("op", str(op), f"already has a {self._what}", "Register each operator once.")
        self._formulas[op] = formula

    def __call__(self, node: fx.Node, device_type: str | None = None) -> int:
        """Evaluate the operator's formula on a device of this type. By default on that of the node's tensors."""
        formula = self._formulas.get(node.target)
        if formula is None:
            return self._otherwise

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
