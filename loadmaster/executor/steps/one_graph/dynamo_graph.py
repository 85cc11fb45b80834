"""Changes of Dynamo's graph before it is compiled: masks are laid out, and what the model keeps leaves it detached.

No fused kernel of PyTorch reads an attention mask whose keys are not side by side, as after an expand: such a call of
``scaled_dot_product_attention`` holds all scores, for the backward pass as well. transformers' BERT and T5 give such
masks. They are copied to another layout, which takes little compared with the scores.

Tensors that a model keeps from its step (computed weights, states, losses of parts) leave the graph with the loss:

    setattr(module, "weight", weight)        # torch.nn.utils.spectral_norm and weight_norm, at every call
    self.aux_loss = aux_loss                 # read by the loss, or written to a log

A planned backward pass begins at the loss alone, so asking for their gradient is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import InputError


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
        raise InputError(
            "loss",
            shapes,
            "reads tensors of these shapes that the model has kept from a planned step; they have no gradient",
            "Add them to the loss inside the step: in the loss function that fit, capture and apply are given.",
        )
