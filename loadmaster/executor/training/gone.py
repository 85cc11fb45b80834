"""Gradients that are gone: after a step whose updates have run, parameters show one that nobody can read.

Functions such as ``torch.nn.utils.clip_grad_norm_`` pass over parameters without a gradient in silence. Between the
backward pass and the optimizer's step, a loop that clips, unscales or looks at gradients would so do nothing, and train
in another way than plain PyTorch does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError


class GoneGradient(Tensor):
    """Gradient whose update has run: any use of it raises InputError. It has the memory of one element."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise InputError(
            "gradient",
            getattr(func, "__name__", str(func)),
            "finds no gradients: the step has updated by them in its backward pass",
            "Clip by fit(..., clip_grad_norm=1.0), read norms from step.grad_norm, train without a "
            "GradScaler, and call zero_grad() with set_to_none=True, the default.",
        )

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "GoneGradient()"


class GoneGradients:
    """Show gone gradients, and take them away before others are made."""

    def __init__(self) -> None:
        self._of: dict[tuple[torch.device, torch.dtype, torch.Size], Tensor] = {}
        self._shown: list[nn.Parameter] = []

    def show(self, parameters: Iterable[nn.Parameter]) -> None:
        """Let parameters show that their gradient is gone."""
        for p in parameters:
            key = p.device, p.dtype, p.shape
            if key not in self._of:
                one = torch.zeros((), device=p.device, dtype=p.dtype)
                self._of[key] = one.expand(p.shape).as_subclass(GoneGradient)
            p.grad = self._of[key]
            self._shown.append(p)

    def clear(self) -> None:
        """Let parameters have no gradient again, where the loop has not given them another."""
        for p in self._shown:
            if type(p.grad) is GoneGradient:
                p.grad = None
        self._shown = []
