"""Tensors that a model makes leaves of, to take gradients with respect to them: physics, penalties, force fields.

    x.requires_grad_(True)                                       # or x.requires_grad = True
    u = self.network(x)
    u_x, = torch.autograd.grad(u.sum(), x, create_graph=True)

Dynamo refuses to, since whoever is given such a tensor, or what was computed from it, would look for its gradient in
vain. A step returns its loss alone. So inside a step the tensor is detached, and the new one is a leaf of the graph.
The batch's own tensor stays as it is, and has no ``grad`` afterwards; the step is the same one whether it required a
gradient before or not, as after a step without a plan. A parameter is still refused, because its ``grad`` is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from loadmaster.executor.steps.one_graph.patched import Change
from loadmaster.executor.torch_private.autograd import allow_inplace_requires_grad, is_inplace_requires_grad_allowed
from loadmaster.executor.torch_private.dynamo import (
    ATTRIBUTE_SETTERS,
    OWN_HANDLERS,
    TensorVariable,
    TorchInGraphFunctionVariable,
    VariableTracker,
    tensor_method,
)

_own_method, _own_call = TensorVariable.method_requires_grad_, TorchInGraphFunctionVariable.call_function


def _make_leaf(tensor: Any, tx: Any, requires_grad: Any = True) -> Any:
    is_wanted = requires_grad is True or requires_grad.as_python_constant()
    has_gradient = tensor.requires_grad and tensor.source is None
    if not is_wanted or has_gradient or issubclass(tensor.python_type(), nn.Parameter):
        return _own_method(tensor, tx, requires_grad)
    leaf: Any = VariableTracker.build(tx, _leaf).call_function(tx, [tensor], {})
    tensor.proxy, tensor.requires_grad = leaf.proxy, True  # whoever holds the tensor holds the leaf
    return tensor


def _setting(own_set: Callable[..., Any]) -> Callable[..., Any]:
    def set_attribute(setter: Any, tx: Any, owner: Any, name: Any, value: Any) -> Any:
        if isinstance(tensor := owner.realize(), TensorVariable) and name.as_python_constant() == "requires_grad":
            _make_leaf(tensor, tx, value)
            return value
        return own_set(setter, tx, owner, name, value)

    return set_attribute


def _call(function: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if "requires_grad" not in kwargs:
        return _own_call(function, tx, args, kwargs)
    made = _own_call(function, tx, args, {name: kwargs[name] for name in kwargs if name != "requires_grad"})
    return _make_leaf(made, tx, kwargs["requires_grad"])


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _leaf(x: torch.Tensor) -> torch.Tensor:
    was_allowed = is_inplace_requires_grad_allowed()
    allow_inplace_requires_grad(True)  # AOTAutograd traces under functionalization, which refuses it
    try:
        return x.detach().requires_grad_()
    finally:
        allow_inplace_requires_grad(was_allowed)


LEAVES_MADE_INSIDE: tuple[Change, ...] = (
    tensor_method("requires_grad_", _make_leaf),
    *((owner, name, _setting(getattr(owner, name))) for owner, name in ATTRIBUTE_SETTERS),
    (TorchInGraphFunctionVariable, "call_function", _call),
    OWN_HANDLERS,
)
"""Changes for ``x.requires_grad_()``, ``x.requires_grad = True`` and ``torch.rand(3, requires_grad=True)``."""
