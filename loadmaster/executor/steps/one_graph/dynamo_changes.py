"""Changes of Dynamo while a step is traced: it takes what it would refuse, where that is safe.

Models make leaves of tensors to take gradients with respect to them: physics, penalties, force fields.

    x.requires_grad_(True)                                       # or x.requires_grad = True
    u = self.network(x)
    u_x, = torch.autograd.grad(u.sum(), x, create_graph=True)

Dynamo refuses to, since whoever is given such a tensor, or what was computed from it, would look for its gradient in
vain. A step returns its loss alone. So inside a step the tensor is detached, and the new one is a leaf of the graph.
The batch's own tensor stays as it is, and has no ``grad`` afterwards; the step is the same one whether it required a
gradient before or not, as after a step without a plan. A parameter is still refused, because its ``grad`` is wanted.

``nn.Transformer`` checks whether its masks are causal, and branches on the result:

    tgt_is_causal = _detect_is_causal_mask(tgt_mask, tgt_is_causal, seq_len)    # bool((mask == causal).all())

The result is only a hint: without it, attention computes with the mask that it is given. So a planned step does not
check. A model that says ``is_causal=True`` is believed, as always, and gets the kernel for it.

Losses of MONAI name dimensions by ``torch.arange(2, len(input.shape)).tolist()``. Dynamo takes what is in a tensor for
unknown, and no operator takes a dimension that is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import transformer
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from loadmaster.executor.steps.one_graph.replaced_attributes import Change
from loadmaster.executor.torch_private.autograd import allow_inplace_requires_grad, is_inplace_requires_grad_allowed
from loadmaster.executor.torch_private.dynamo import (
    ATTRIBUTE_SETTERS,
    OWN_HANDLERS,
    TensorVariable,
    TorchInGraphFunctionVariable,
    VariableTracker,
    tensor_methods,
)


def _as_told(_mask: torch.Tensor | None, is_causal: bool | None = None, _size: int | None = None) -> bool:
    return is_causal is True


_asks = TensorVariable.method_tolist


def _known_or_asked(tensor: TensorVariable, tx: Any) -> Any:
    made = tensor.as_proxy().node
    if not _is_known(made):
        return _asks(tensor, tx)
    ends: Any = made.args
    return VariableTracker.build(tx, list(range(*ends)))


def _is_known(made: fx.Node) -> bool:
    """Return whether a node is a range of whole numbers without users, which may have written to it."""
    if made.target is not torch.arange or made.users or made.kwargs.keys() - {"device"}:
        return False
    return all(isinstance(end, int) for end in made.args)


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


TRACED_OTHERWISE: tuple[Change, ...] = (
    (transformer, "_detect_is_causal_mask", _as_told),
    *tensor_methods(tolist=_known_or_asked, requires_grad_=_make_leaf),
    *((owner, name, _setting(getattr(owner, name))) for owner, name in ATTRIBUTE_SETTERS),
    (TorchInGraphFunctionVariable, "call_function", _call),
    *OWN_HANDLERS,
)
"""Changes to trace under: of masks, ranges, ``requires_grad_()``, ``requires_grad = True`` and the keyword."""


@cache
def trace_sequential_checkpoints() -> None:
    """Let Dynamo trace an equal function in place of ``checkpoint_sequential``, for all that this process compiles."""
    with contextlib.suppress(ValueError):  # somebody has done so
        torch.compiler.substitute_in_graph(checkpoint_sequential)(_checkpoint_sequential)


def _checkpoint_sequential(
    functions: Sequence[Callable[..., Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    layers = list(functions.children() if isinstance(functions, nn.Sequential) else functions)

    def run(layers: Sequence[Callable[..., Any]], x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    each = len(layers) // segments
    reentrant = True if use_reentrant is None else use_reentrant
    for first in range(0, each * (segments - 1), each):
        input = checkpoint(run, layers[first : first + each], input, use_reentrant=reentrant, **kwargs)
    return run(layers[each * (segments - 1) :], input)
