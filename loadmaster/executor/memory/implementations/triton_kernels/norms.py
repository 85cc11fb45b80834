# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Normalized results from saved statistics, over memory in its own order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.triton_kernels.launch import BLOCK, grid, is_wide, positions
from loadmaster.executor.steps.layouts import dense


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
    """Triton form of :func:`loadmaster.executor.memory.implementations.batch_norm.batch_norm_apply`."""
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


@triton.jit
def _layer_norm_apply(
    x,
    mean,
    rstd,
    weight,
    bias,
    result,
    count,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    row = element // WIDTH
    column = (element - row * WIDTH).to(tl.int32)
    value = tl.load(x + element, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    if mean is not None:
        value -= tl.load(mean + row, mask=valid, other=0.0).to(value.dtype)
    value *= tl.load(rstd + row, mask=valid, other=0.0).to(value.dtype)
    if weight is not None:
        value *= tl.load(weight + column).to(value.dtype)
    if bias is not None:
        value += tl.load(bias + column).to(value.dtype)
    tl.store(result + element, value.to(result.dtype.element_ty), mask=valid)


def layer_norm_apply(
    x: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None, result: Tensor
) -> None:
    """Write the normalized rows to ``result``; all tensors are contiguous.

    See :func:`loadmaster.executor.memory.implementations.layer_norm.layer_norm_apply`.
    """
    count = x.numel()
    if count:
        width = count // rstd.numel()
        _layer_norm_apply[grid(count)](
            x, mean, rstd, weight, bias, result, count, WIDTH=width, WIDE=is_wide(count), BLOCK=BLOCK
        )


@triton.jit
def _norm_input(
    output,
    mean,
    rstd,
    weight,
    bias,
    result,
    count,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    INNER: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    group = (element // GROUP % GROUPS).to(tl.int32)
    channel = (element // INNER % CHANNELS).to(tl.int32)
    value = tl.load(output + element, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    if bias is not None:
        value -= tl.load(bias + channel).to(value.dtype)
    if weight is not None:
        value /= tl.load(weight + channel).to(value.dtype)
    value /= tl.load(rstd + group).to(value.dtype)
    if mean is not None:
        value += tl.load(mean + group).to(value.dtype)
    tl.store(result + element, value.to(result.dtype.element_ty), mask=valid)


def norm_input(output: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.norm_inverse.norm_input`."""
    if rstd.dim() > 1 and rstd.shape[0] == 1 and rstd.shape[1] == output.shape[1] and rstd.numel() == rstd.shape[1]:
        output = dense(output)
        inner = output.stride(1) if output.shape[1] != 1 else 1
        places = {"GROUP": inner, "GROUPS": output.shape[1], "INNER": inner, "CHANNELS": output.shape[1]}
    else:
        output = output.contiguous()
        width = output.numel() // max(1, rstd.numel())
        places = {"GROUP": width, "GROUPS": rstd.numel(), "INNER": 1, "CHANNELS": width}
    result = torch.empty_like(output)
    count = output.numel()
    if count:
        _norm_input[grid(count)](
            output, mean, rstd, weight, bias, result, count, **places, WIDE=is_wide(count), BLOCK=BLOCK
        )
    return result
