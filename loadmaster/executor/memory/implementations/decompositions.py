"""The elementwise implementations as plain PyTorch operators, for compilers that fuse them with their neighbours.

As custom operators they run as kernels of their own, which is right where graphs run node by node. A compiler such as
Inductor sees only a black box then; given these decompositions it computes masks, dropout and normalization inside the
kernels around them, and nothing but the packed mask, the seed or the statistics reaches memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.memory.implementations.batch_norm import batch_norm_apply
from loadmaster.executor.memory.implementations.dropout import mixed, scale_and_threshold, seeded_dropout
from loadmaster.executor.memory.implementations.masks import BITS, masked_gradient


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table to add to a compiler's own; each entry leaves its operator as it is where a copy would be needed."""
    return {
        masked_gradient._opoverload: _masked_gradient,
        seeded_dropout._opoverload: _seeded_dropout,
        batch_norm_apply._opoverload: _batch_norm_apply,
    }


def _masked_gradient(gradient: Tensor, mask: Tensor) -> Any:
    if not gradient.is_contiguous():
        return NotImplemented
    bit = torch.arange(BITS, dtype=torch.int32, device=mask.device)
    inside = (mask.to(torch.int32).unsqueeze(1) >> bit) & 1
    return gradient.where(inside.view(-1)[: gradient.numel()].view(gradient.shape) != 0, 0)


def _seeded_dropout(x: Tensor, seed: Tensor, p: float) -> Any:
    if not x.is_contiguous():
        return NotImplemented
    scale, threshold = scale_and_threshold(p)
    number = torch.arange(1, x.numel() + 1, dtype=torch.int64, device=x.device)
    return x * scale * (mixed(number, seed) >= threshold).view(x.shape)


def _batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)

    def per_channel(values: Tensor) -> Tensor:
        return values.to(exact).view(-1, *(1,) * (x.dim() - 2))

    # In the order of the compiler's own BatchNorm, so that the second computation gives the bits of the first.
    result = (x.to(exact) - per_channel(mean)) * per_channel(rstd)
    if weight is not None:
        result = result * per_channel(weight)
    if bias is not None:
        result = result + per_channel(bias)
    return result.to(x.dtype)
