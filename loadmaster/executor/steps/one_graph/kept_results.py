"""Tensors that a model keeps from its step: computed weights, states, losses of parts, maps of attention.

    setattr(module, "weight", weight)        # torch.nn.utils.spectral_norm and weight_norm, at every call
    self.aux_loss = aux_loss                 # read by the loss, or written to a log

These leave the graph together with the loss. A planned backward pass begins at the loss alone. So they leave it
detached, and asking for their gradient is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from loadmaster.errors import InputError


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
        refused = _Kept.apply(leaf, *(results[n] for n in kept))  # type: ignore[no-untyped-call]
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
