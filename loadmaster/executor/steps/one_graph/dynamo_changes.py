"""Changes of Dynamo, which takes what it would refuse where that is safe, and of its graph before it is compiled.

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

In Dynamo's graph masks are laid out, and what the model keeps leaves it detached. No fused kernel of PyTorch reads an
attention mask whose keys are not side by side, as after an expand: such a call of ``scaled_dot_product_attention``
holds all scores, for the backward pass as well. transformers' BERT and T5 give such masks. They are copied to another
layout, which takes little compared with the scores.

Tensors that a model keeps from its step (computed weights, states, losses of parts) leave the graph with the loss:

    setattr(module, "weight", weight)        # torch.nn.utils.spectral_norm and weight_norm, at every call
    self.aux_loss = aux_loss                 # read by the loss, or written to a log

A planned backward pass begins at the loss alone, so asking for their gradient is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import transformer
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from loadmaster.errors import InputError
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

_asks = TensorVariable.method_tolist


def _known_or_asked(tensor: TensorVariable, tx: Any) -> Any:
    made = tensor.as_proxy().node
    ends: Any = made.args
    # Known is a range of whole numbers without users, which may have written to it.
    is_range = made.target is torch.arange and not made.users and not made.kwargs.keys() - {"device"}
    if not is_range or not all(isinstance(end, int) for end in ends):
        return _asks(tensor, tx)
    return VariableTracker.build(tx, list(range(*ends)))


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
    (transformer, "_detect_is_causal_mask", lambda mask, is_causal=None, size=None: is_causal is True),
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
    functions: Sequence[Callable[..., Any]], segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
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


def lay_out_masks(module: fx.GraphModule) -> None:
    """Lay out again the attention masks of Dynamo's graph whose keys are not contiguous."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found = False
    for node in module.graph.find_nodes(op="call_function", target=attention):
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        value = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
        if not isinstance(value, Tensor) or value.dim() == 0 or value.stride(-1) == 1:
            continue
        with module.graph.inserting_before(node):
            laid_out = _with_keys_side_by_side(module.graph, mask, value)
        # Not elsewhere: other readers of the mask may depend on its layout.
        node.replace_input_with(mask, laid_out)
        found = True
    if found:
        module.recompile()


def _with_keys_side_by_side(graph: fx.Graph, mask: fx.Node, value: Tensor) -> fx.Node:
    """Copy a mask with its keys contiguous; one that is the same for all heads, or for the whole batch, only once."""
    node = mask
    for dimension in range(value.dim() - 1):
        if value.stride(dimension) == 0 and not value.requires_grad:
            node = graph.call_method("narrow", (node, dimension, 0, 1))
    return graph.call_method("expand_as", (graph.call_method("contiguous", (node,)), mask))


def detach_kept(module: fx.GraphModule) -> tuple[int, ...]:
    """Detach what Dynamo's graph returns after the loss; return the places of those that had a gradient."""
    end = module.graph.output_node()
    outputs: Sequence[fx.Node] = end.args[0]  # type: ignore[assignment]
    first, *others = outputs or (None,)
    found = []
    for place, node in enumerate(others, start=1):
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            with module.graph.inserting_before(end):
                others[place - 1] = detached = module.graph.call_method("detach", (node,))
            detached.meta.update(node.meta, example_value=value.detach())
            found.append(place)
    if found:
        end.args = ((first, *others),)
        module.recompile()
    return tuple(found)


def refusing_gradients(run: Callable[..., Any], kept: Sequence[int]) -> Callable[..., Any]:
    """Wrap ``run``: results at these places require a gradient, as without a plan, but a backward pass raises."""
    if not kept:
        return run

    def refusing(*inputs: Any) -> tuple[Any, ...]:
        results = list(run(*inputs))
        leaf = torch.zeros((), requires_grad=True)
        refused = _Kept.apply(leaf, *(results[n] for n in kept))  # type: ignore[no-untyped-call, unused-ignore]
        for place, result in zip(kept, refused, strict=True):
            results[place] = result
        return tuple(results)

    return refusing


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, _leaf: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.set_materialize_grads(False)
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor | None) -> Any:
        shapes = [tuple(gradient.shape) for gradient in gradients if gradient is not None]
        problem = "reads tensors of these shapes that the model has kept from a planned step; they have no gradient"
        remedy = "Add them to the loss inside the step: in the loss function that fit, capture and apply are given."
        raise InputError("loss", shapes, problem, remedy)
