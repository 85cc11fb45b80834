"""What is known of single operators by a formula of their arguments, such as bytes of workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import value_of

Formula = Callable[..., int]


class OperatorFormulas:
    """A whole number for a node of a graph, by the formula of its operator: ``formulas(node)``.

    Args:
        what: that the formulas give, for messages: ``workspace formula``.
        otherwise: the number of operators without a formula.
    """

    def __init__(self, what: str, otherwise: int) -> None:
        self._what, self._otherwise = what, otherwise
        self._formulas: dict[Any, Formula] = {}

    def register(self, op: torch._ops.OpOverload, formula: Formula) -> None:
        """Set an operator's formula, which gets the operator's arguments, fake tensors for tensors.

        Raises:
            InputError: the operator has one.
        """
        if op in self._formulas:
            raise InputError("op", str(op), f"already has a {self._what}", "Register each operator once.")
        self._formulas[op] = formula

    def __call__(self, node: fx.Node) -> int:
        """The formula's number."""
        formula = self._formulas.get(node.target)
        if formula is None:
            return self._otherwise
        return int(formula(*fx.node.map_arg(node.args, value_of), **fx.node.map_arg(node.kwargs, value_of)))
