# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Max-pool offsets and their backward, for any layout of every operand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.triton_kernels.elementwise import launch, positions
from loadmaster.executor.steps.layouts import dense


@triton.jit
def _pool_offsets(
    indices,
    offsets,
    count,
    WIDTH: tl.constexpr,
    POOLED_H: tl.constexpr,
    POOLED_W: tl.constexpr,
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    window = positions(WIDE, BLOCK)
    index = tl.load(indices + window, mask=window < count, other=0).to(tl.int32)
    top = (window // ROW % POOLED_H).to(tl.int32) * STRIDE_H - PADDING_H
    left = (window // COLUMN % POOLED_W).to(tl.int32) * STRIDE_W - PADDING_W
    row = (index // WIDTH - top) // DILATION_H
    column = (index % WIDTH - left) // DILATION_W
    tl.store(offsets + window, (row * KERNEL_W + column).to(tl.uint8), mask=window < count)


def pool_offsets(indices: Tensor, width: int, *window: Sequence[int]) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.pooling.pool_offsets`."""
    indices = dense(indices)
    offsets = torch.empty_like(indices, dtype=torch.uint8)
    pooled = {"POOLED_H": indices.shape[-2], "POOLED_W": indices.shape[-1]}
    steps = {"ROW": max(1, indices.stride(-2)), "COLUMN": max(1, indices.stride(-1))}
    constants = {"WIDTH": width, **pooled, **steps, **_window(*window)}
    launch(_pool_offsets, indices.numel(), indices, offsets, indices.numel(), **constants)
    return offsets


@triton.jit
def _pool_offset_backward(
    gradient,
    offsets,
    result,
    count,
    gradient_sample,
    gradient_channel,
    gradient_row,
    gradient_column,
    offset_sample,
    offset_channel,
    offset_row,
    offset_column,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    SAMPLE: tl.constexpr,
    CHANNEL: tl.constexpr,
    ROW: tl.constexpr,
    COLUMN: tl.constexpr,
    POOLED_H: tl.constexpr,
    POOLED_W: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    DOUBLE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    sample = (element // SAMPLE).to(tl.int64)
    channel = (element // CHANNEL % CHANNELS).to(tl.int64)
    row = (element // ROW % HEIGHT).to(tl.int32) + PADDING_H
    column = (element // COLUMN % WIDTH).to(tl.int32) + PADDING_W
    gradient += sample * gradient_sample + channel * gradient_channel
    offsets += sample * offset_sample + channel * offset_channel
    total = tl.zeros([BLOCK], tl.float64 if DOUBLE else tl.float32)
    # From the last window position to the first is from the first window to the last: the order in which PyTorch's
    # own kernel adds them.
    for i in tl.static_range(KERNEL_H):
        h = KERNEL_H - 1 - i
        top = row - h * DILATION_H
        rows = (element < count) & (top >= 0) & (top % STRIDE_H == 0) & (top // STRIDE_H < POOLED_H)
        for j in tl.static_range(KERNEL_W):
            w = KERNEL_W - 1 - j
            left = column - w * DILATION_W
            inside = rows & (left >= 0) & (left % STRIDE_W == 0) & (left // STRIDE_W < POOLED_W)
            y = top // STRIDE_H
            x = left // STRIDE_W
            offset = tl.load(offsets + y * offset_row + x * offset_column, mask=inside, other=255).to(tl.int32)
            hit = inside & (offset == h * KERNEL_W + w)
            total += tl.load(gradient + y * gradient_row + x * gradient_column, mask=hit, other=0.0).to(total.dtype)
    tl.store(result + element, total.to(result.dtype.element_ty), mask=element < count)


def pool_offset_backward(gradient: Tensor, offsets: Tensor, result: Tensor, *window: Sequence[int]) -> None:
    """Write the gradient of the pool's input to ``result``, which is dense, the samples outermost. See
    :func:`loadmaster.executor.memory.implementations.pooling.pool_offset_backward`."""
    gradient, offsets, result = (t if t.dim() == 4 else t.unsqueeze(0) for t in (gradient, offsets, result))
    _, channels, height, width = result.shape
    steps = {"SAMPLE": channels * height * width, "CHANNEL": result.stride(1)}
    steps |= {"ROW": result.stride(2), "COLUMN": result.stride(3)}
    pooled = {"POOLED_H": gradient.shape[2], "POOLED_W": gradient.shape[3], "KERNEL_H": window[0][0]}
    launch(
        _pool_offset_backward,
        result.numel(),
        *(gradient, offsets, result, result.numel(), *gradient.stride(), *offsets.stride()),
        **{"CHANNELS": channels, "HEIGHT": height, "WIDTH": width, **steps, **pooled, **_window(*window)},
        DOUBLE=gradient.dtype == torch.float64,
    )


def _window(
    kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> dict[str, int]:
    both = {"STRIDE": stride, "PADDING": padding, "DILATION": dilation}
    each = {f"{name}_{axis}": size for name, sizes in both.items() for axis, size in zip("HW", sizes, strict=True)}
    return {"KERNEL_W": kernel[1], **each}
