"""The user's optimizer: below the wrappers of trainers, and with clipping in its ``step()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from loadmaster.errors import InputError

_clipping: WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = WeakKeyDictionary()


# Steps that hand on to the optimizer that is wrapped, and do nothing else to the parameters.
_HANDING_ON = {
    "accelerate.optimizer.AcceleratedOptimizer.step",
    "lightning.fabric.wrappers._FabricOptimizer.step",
    "lightning.pytorch.core.optimizer.LightningOptimizer.step",
    "lightning_fabric.wrappers._FabricOptimizer.step",
    "pytorch_lightning.core.optimizer.LightningOptimizer.step",
}


def held_optimizers(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """List the optimizers that this one keeps, under whatever name: of a wrapper, those that it wraps."""
    kept = list(vars(optimizer).values())
    for values in [value for value in kept if isinstance(value, list | tuple | dict)]:
        kept += values.values() if isinstance(values, dict) else values
    return [value for value in kept if isinstance(value, torch.optim.Optimizer) and value is not optimizer]


def own_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that a trainer (accelerate, Lightning) has wrapped; any other one itself.

    What else wraps an optimizer (Lookahead, SAM, averaged weights) may have an algorithm of its own, and is no wrapper
    in this sense. Which function is its ``step`` tells: Lightning's wrappers are of the optimizer's own class, too.
    """
    step, held = type(optimizer).step, held_optimizers(optimizer)
    if held and f"{step.__module__}.{step.__qualname__}" in _HANDING_ON:
        return own_optimizer(held[0])
    return optimizer


def expect_own_update(optimizer: torch.optim.Optimizer) -> None:
    """Refuse, by an InputError, an optimizer that wraps others: what it does beside their steps is not known."""
    held = held_optimizers(optimizer)
    if held:
        problem = f"wraps {type(held[0]).__name__}, and what it does beside that one's step would be left out"
        remedy = f"Give the {type(held[0]).__name__} itself, and call its step(), or plan activations alone."
        raise InputError("optimizer", type(optimizer).__name__, problem, remedy)


def closure_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the closure of a call of ``step``, from the arguments of its hook, the first of which is the optimizer."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def clip_at_step(optimizer: torch.optim.Optimizer, max_norm: float | None, max_value: float | None = None) -> None:
    """Let the optimizer's ``step()`` clip the gradients of all its parameters before it updates, to a global norm or
    each value; both None: no more. A loop that has clipped so by itself is not changed by it."""
    held = held_optimizers(optimizer)
    if held and not getattr(type(optimizer).step, "hooked", False):  # a wrapper whose step calls no hooks of its own
        clip_at_step(held[0], max_norm, max_value)
        return
    before = _clipping.pop(optimizer, None)
    if before is not None:
        before.remove()
    if max_norm is None and max_value is None:
        return
    field, limit = ("clip_grad_norm", max_norm) if max_value is None else ("clip_grad_value", max_value)

    def clip(of: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if closure_of(args, kwargs) is not None:
            problem = "cannot be kept: the gradients are made inside optimizer.step(closure)"
            raise InputError(field, limit, problem, "Clip them in the closure.")
        if getattr(of, "grad_scale", None) is not None:
            remedy = "Call scaler.unscale_(optimizer) before scaler.step(optimizer)."
            raise InputError(field, limit, "cannot be kept: the gradients are scaled", remedy)
        parameters = [p for group in of.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:  # PyTorch's clipping of values raises an error
            return
        if max_value is not None:
            nn.utils.clip_grad_value_(parameters, max_value)
        elif max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, max_norm)

    _clipping[optimizer] = optimizer.register_step_pre_hook(clip)
