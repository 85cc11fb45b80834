# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""The implementations' CUDA kernels, in Triton. Each computes what its operator's PyTorch form computes, bit for bit.

Operators reach these through :mod:`loadmaster.executor.memory.implementations.kernels`; shapes are checked there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.chunks import laid_out_like

BLOCK = 1024
MASK_BYTES = 256  # bytes of a packed mask per program
ROW_BLOCK = 4096  # logits of a row at a time
ROW_WARPS = 8
SPLITMIX_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
SPLITMIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
SPLITMIX_2 = tl.constexpr(0x94D049BB133111EB)


def _grid(count: int, block: int) -> tuple[int]:
    return (triton.cdiv(count, block),)


@triton.jit
def _pack_inside(x, packed, count, LOW: tl.constexpr, HIGH: tl.constexpr, BYTES: tl.constexpr):
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    element = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    value = tl.load(x + element, mask=element < count, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    inside = (value > LOW) | (value != value)
    if HIGH is not None:
        inside = inside & ((value < HIGH) | (value != value))
    bits = inside.to(tl.int32) << tl.arange(0, 8)[None, :]
    bits = tl.where(element < count, bits, 0)
    tl.store(packed + byte, tl.sum(bits, 1).to(tl.uint8), mask=byte * 8 < count)


def pack_inside(x: Tensor, low: float, high: float | None) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.masks.pack_inside`."""
    x = x.contiguous()
    count = x.numel()
    packed = x.new_empty(((count + 7) // 8,), dtype=torch.uint8)
    if count:
        _pack_inside[_grid(packed.numel(), MASK_BYTES)](x, packed, count, LOW=low, HIGH=high, BYTES=MASK_BYTES)
    return packed


@triton.jit
def _masked_gradient(gradient, packed, result, count, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = element < count
    bits = tl.load(packed + element // 8, mask=valid, other=0).to(tl.int32)
    inside = ((bits >> (element % 8).to(tl.int32)) & 1) != 0
    value = tl.load(gradient + element, mask=valid & inside, other=0.0)
    tl.store(result + element, value, mask=valid)


def masked_gradient(gradient: Tensor, mask: Tensor) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.masks.masked_gradient`."""
    dense = gradient.contiguous()
    result = torch.empty_like(dense)
    count = dense.numel()
    if count:
        _masked_gradient[_grid(count, BLOCK)](dense, mask, result, count, BLOCK=BLOCK)
    return laid_out_like(result, gradient)


@triton.jit
def _seeded_dropout(x, seed, result, count, threshold, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = element < count
    z = (element + 1).to(tl.uint64) * SPLITMIX_GOLDEN + tl.load(seed).to(tl.uint64)
    z = (z ^ (z >> 30)) * SPLITMIX_1
    z = (z ^ (z >> 27)) * SPLITMIX_2
    z = z ^ (z >> 31)
    keep = (z >> 32).to(tl.int64) >= threshold
    value = tl.load(x + element, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    scaled = value * SCALE * keep.to(value.dtype)
    tl.store(result + element, scaled.to(result.dtype.element_ty), mask=valid)


def seeded_dropout(x: Tensor, seed: Tensor, scale: float, threshold: int) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.dropout.seeded_dropout`."""
    dense = x.contiguous()
    result = torch.empty_like(dense)
    count = dense.numel()
    if count:
        _seeded_dropout[_grid(count, BLOCK)](dense, seed, result, count, threshold, SCALE=scale, BLOCK=BLOCK)
    return laid_out_like(result, x)


@triton.jit
def _pool_offsets(
    indices,
    offsets,
    WIDTH: tl.constexpr,
    POOLED: tl.constexpr,
    POOLED_WIDTH: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(0).to(tl.int64)
    window = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices + plane * POOLED + window, mask=window < POOLED, other=0).to(tl.int32)
    row = (index // WIDTH - (window // POOLED_WIDTH * STRIDE_H - PADDING_H)) // DILATION_H
    column = (index % WIDTH - (window % POOLED_WIDTH * STRIDE_W - PADDING_W)) // DILATION_W
    tl.store(offsets + plane * POOLED + window, (row * KERNEL_W + column).to(tl.uint8), mask=window < POOLED)


def pool_offsets(
    indices: Tensor,
    width: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.pooling.pool_offsets`."""
    indices = indices.contiguous()
    offsets = indices.new_empty(indices.shape, dtype=torch.uint8)
    pooled = indices.shape[-2] * indices.shape[-1]
    if indices.numel():
        _pool_offsets[(indices.numel() // pooled, triton.cdiv(pooled, BLOCK))](
            indices,
            offsets,
            WIDTH=width,
            POOLED=pooled,
            POOLED_WIDTH=indices.shape[-1],
            KERNEL_W=kernel[1],
            **_window(stride, padding, dilation),
            BLOCK=BLOCK,
        )
    return offsets


@triton.jit
def _pool_offset_backward(
    gradient,
    offsets,
    result,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    POOLED_HEIGHT: tl.constexpr,
    POOLED_WIDTH: tl.constexpr,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PADDING_H: tl.constexpr,
    PADDING_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = element // WIDTH + PADDING_H
    column = element % WIDTH + PADDING_W
    gradient += plane * POOLED_HEIGHT * POOLED_WIDTH
    offsets += plane * POOLED_HEIGHT * POOLED_WIDTH
    total = tl.zeros([BLOCK], tl.float64 if DOUBLE else tl.float32)
    # From the last window position to the first is from the first window to the last: the order in which PyTorch's
    # own kernel adds them.
    for i in tl.static_range(KERNEL_H):
        h = KERNEL_H - 1 - i
        top = row - h * DILATION_H
        rows = (element < SIZE) & (top >= 0) & (top % STRIDE_H == 0) & (top // STRIDE_H < POOLED_HEIGHT)
        for j in tl.static_range(KERNEL_W):
            w = KERNEL_W - 1 - j
            left = column - w * DILATION_W
            inside = rows & (left >= 0) & (left % STRIDE_W == 0) & (left // STRIDE_W < POOLED_WIDTH)
            window = top // STRIDE_H * POOLED_WIDTH + left // STRIDE_W
            offset = tl.load(offsets + window, mask=inside, other=255).to(tl.int32)
            hit = inside & (offset == h * KERNEL_W + w)
            total += tl.load(gradient + window, mask=hit, other=0.0).to(total.dtype)
    tl.store(result + plane * SIZE + element, total.to(result.dtype.element_ty), mask=element < SIZE)


def pool_offset_backward(
    gradient: Tensor,
    offsets: Tensor,
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """See :func:`loadmaster.executor.memory.implementations.pooling.pool_offset_backward`."""
    # Compilers hand over both in whatever layout they chose for the graph, channels last among them.
    gradient, offsets = gradient.contiguous(), offsets.contiguous()
    result = gradient.new_empty(shape)
    size = shape[-2] * shape[-1]
    if result.numel():
        _pool_offset_backward[(result.numel() // size, triton.cdiv(size, BLOCK))](
            gradient,
            offsets,
            result,
            SIZE=size,
            WIDTH=shape[-1],
            POOLED_HEIGHT=gradient.shape[-2],
            POOLED_WIDTH=gradient.shape[-1],
            KERNEL_H=kernel[0],
            KERNEL_W=kernel[1],
            **_window(stride, padding, dilation),
            DOUBLE=gradient.dtype == torch.float64,
            BLOCK=BLOCK,
        )
    return result


def _window(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> dict[str, int]:
    return {
        "STRIDE_H": stride[0],
        "STRIDE_W": stride[1],
        "PADDING_H": padding[0],
        "PADDING_W": padding[1],
        "DILATION_H": dilation[0],
        "DILATION_W": dilation[1],
    }


@triton.jit
def _batch_norm_apply(
    x, mean, rstd, weight, bias, result, count, CHANNELS: tl.constexpr, INNER: tl.constexpr, BLOCK: tl.constexpr
):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
    channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    dense = x if channels_last else x.contiguous()
    result = torch.empty_like(dense)
    if x.numel():
        _batch_norm_apply[_grid(x.numel(), BLOCK)](
            dense,
            mean,
            rstd,
            weight,
            bias,
            result,
            x.numel(),
            CHANNELS=x.shape[1],
            INNER=1 if channels_last else x[0, 0].numel(),
            BLOCK=BLOCK,
        )
    return result if channels_last else laid_out_like(result, x)


@triton.jit
def _normalize_rows(logits, classes, normalizer, picked, count, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    kind = tl.float64 if DOUBLE else tl.float32
    largest = tl.full([BLOCK], -float("inf"), kind)
    total = tl.zeros([BLOCK], kind)
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(logits + row * count + column, mask=column < count, other=-float("inf")).to(kind)
        higher = tl.maximum(largest, score)
        # Nothing to rescale where all was -inf so far: exp(-inf - -inf) would be NaN.
        total = tl.where(higher == -float("inf"), 0.0, total * tl.exp(largest - higher) + tl.exp(score - higher))
        largest = higher
    top = tl.max(largest, 0)
    tl.store(normalizer + row, top + tl.log(tl.sum(total * tl.exp(largest - top), 0)))
    tl.store(picked + row, tl.load(logits + row * count + tl.load(classes + row)).to(kind))


def normalize_rows(logits: Tensor, classes: Tensor, normalizer: Tensor, picked: Tensor) -> None:
    """The logsumexp of each row and the logit of its class, written to ``normalizer`` and ``picked``.

    Args:
        logits: [rows, classes], contiguous.
        classes: int64 [rows].
        normalizer, picked: float32 or float64 [rows].
    """
    rows, count = logits.shape
    if rows:
        double = normalizer.dtype == torch.float64
        _normalize_rows[(rows,)](
            logits, classes, normalizer, picked, count, DOUBLE=double, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS
        )


@triton.jit
def _differentiate_rows(logits, classes, normalizer, scales, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offset = tl.load(normalizer + row)
    scale = tl.load(scales + row)
    place = logits + row * count + column
    score = tl.load(place, mask=column < count, other=0.0).to(offset.dtype)
    error = tl.exp(score - offset) - tl.where(column == tl.load(classes + row), 1.0, 0.0)
    # A row that does not count may hold anything: zero, not zero times what may be infinite.
    error = tl.where(scale == 0.0, 0.0, error * scale)
    tl.store(place, error.to(logits.dtype.element_ty), mask=column < count)


def differentiate_rows(logits: Tensor, classes: Tensor, normalizer: Tensor, scales: Tensor) -> None:
    """Overwrites the logits with their gradient: (softmax - one-hot) times the row's scale.

    Args:
        logits: [rows, classes], contiguous.
        classes: int64 [rows].
        normalizer, scales: float32 or float64 [rows].
    """
    rows, count = logits.shape
    if rows:
        _differentiate_rows[(rows, triton.cdiv(count, ROW_BLOCK))](
            logits, classes, normalizer, scales, count, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS
        )
