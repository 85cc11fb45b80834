# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Normalized results from saved statistics, over memory in its own order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.layouts import dense
from loadmaster.executor.memory.implementations.triton_kernels.launch import BLOCK, grid, is_wide, positions


@triton.jit
def _batch_norm_apply(
    x,
    mean,
    rstd,
    weight,
    bias,
    result,
    count,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    channel = (element // INNER % CHANNELS).to(tl.int32)
    value = tl.load(x + element, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    value -= tl.load(mean + channel).to(value.dtype)
    if weight is not None:
        value *= tl.load(weight + channel).to(value.dtype)
    value *= tl.load(rstd + channel).to(value.dtype)
    if bias is not None:
        value += tl.load(bias + channel).to(value.dtype)
    tl.store(result + element, value.to(result.dtype.element_ty), mask=valid)


def batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.batch_norm.batch_norm_apply`."""
    x = dense(x)
    result = torch.empty_like(x)
    count = x.numel()
    if count:
        inner = x.stride(1) if x.shape[1] != 1 else 1
        _batch_norm_apply[grid(count)](
            x,
            mean,
            rstd,
            weight,
            bias,
            result,
            count,
            CHANNELS=x.shape[1],
            INNER=inner,
            WIDE=is_wide(count),
            BLOCK=BLOCK,
        )
    return result
