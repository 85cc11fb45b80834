"""Attributes of ``nn.Module`` with what it holds itself. Public methods go through hooks, skip None or drop repeats."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from loadmaster.executor.torch_private import needed

with needed():
    # Base class of all batch norms, also the synchronized and the lazy one.
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

__all__ = ["BatchNorm"]

parameters_of: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter("_parameters")
"""Parameters of a module itself by name: to be replaced by stand-ins without the checks of ``setattr``."""

buffers_of: Callable[[nn.Module], dict[str, Tensor | None]] = attrgetter("_buffers")
"""Buffers of a module itself by name, None and repeated ones included."""

children_of: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")
"""Children of a module by name."""

forward_hooks_of: Callable[[nn.Module], dict[int, Any]] = attrgetter("_forward_hooks")
"""Forward hooks of a module by their handle's number: nothing public lists them."""

forward_pre_hooks_of: Callable[[nn.Module], dict[int, Any]] = attrgetter("_forward_pre_hooks")
"""Forward pre-hooks of a module."""


def has_backward_hooks(module: nn.Module) -> bool:
    """Return whether a module has backward hooks, which a step that is one graph would not call."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def gradient_hooks_of(tensor: Tensor) -> list[dict[int, Any]]:
    """Return the hooks that wait for a tensor's gradient, by their handles' numbers; nothing public lists them."""
    return [hooks for hooks in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) if hooks]


def without_compile(model: nn.Module) -> nn.Module:
    """Return the model inside ``torch.compile(model)``; any other model itself."""
    found: nn.Module = getattr(model, "_orig_mod", model)
    return found


def copy_non_persistent(module: nn.Module, to: nn.Module) -> None:
    """Have the buffers that are left out of a module's state left out of another one's, under the same names."""
    to._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
