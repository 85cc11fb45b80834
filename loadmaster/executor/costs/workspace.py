"""Workspace that is known without running the operator. An operator without a formula is taken to need none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import value_of

WorkspaceFormula = Callable[..., int]
_formulas: dict[Any, WorkspaceFormula] = {}


def register_workspace(op: torch._ops.OpOverload, formula: WorkspaceFormula) -> None:
    """Say how many bytes an operator takes while it runs: ``formula`` gets its arguments, fake tensors for tensors.

    Raises:
        InputError: the operator has a formula.
    """
    if op in _formulas:
        raise InputError("op", str(op), "already has a workspace formula", "Register each operator once.")
    _formulas[op] = formula


def workspace_formula_bytes(node: fx.Node) -> int:
    """The registered formula's answer, or 0."""
    formula = _formulas.get(node.target)
    if formula is None:
        return 0
    return int(formula(*fx.node.map_arg(node.args, value_of), **fx.node.map_arg(node.kwargs, value_of)))
