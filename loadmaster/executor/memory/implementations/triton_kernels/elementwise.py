# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Elementwise kernels, over memory in its own order: dropout from a seed, packed masks, normalizations.

Dropout computes an element's row-major number, and does not look it up. In memory order a tensor with a packed mask is
slabs of ``ELEMENTS``, and its mask slabs of ``BYTES``. A slab is the packed dimension with everything inside it; bit j
of a slab's byte r belongs to its element ``j * BYTES + r``, so that eight loads with one address calculation cover what
a byte holds.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.steps.layouts import dense, ordered_strides, row_major_steps

BLOCK = 1024  # elements per program
MASK_BLOCK = 512  # bytes of a mask per program
NARROW_LIMIT = 2**31 - 2**16  # positions beyond need 64 bits; the rest is what the last program may run over
SPLITMIX_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
SPLITMIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
SPLITMIX_2 = tl.constexpr(0x94D049BB133111EB)
DIGITS = 4  # dimensions that the dropout kernel tells apart: those in memory in another order than row-major


def grid(count: int, block: int = BLOCK) -> tuple[int]:
    """Launch grid with one program for every block of this many elements."""
    return (triton.cdiv(count, block),)


def launch(kernel: Any, count: int, *arguments: object, **constants: object) -> None:
    """Run a kernel over this many elements, if there are any."""
    if count:
        kernel[grid(count)](*arguments, **constants, WIDE=is_wide(count), BLOCK=BLOCK)


def is_wide(count: int) -> bool:
    """Return whether positions need 64 bits: dividing 32-bit ones is several times faster."""
    return count > NARROW_LIMIT


@triton.jit
def positions(WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Positions of the elements of this program, [BLOCK]."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    return start * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def loaded(pointers, valid):
    """Values at these pointers: in float64 as they are, all others in float32."""
    value = tl.load(pointers, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    return value


@triton.jit
def _seeded_dropout(
    x,
    seed,
    result,
    count,
    threshold,
    STEP_0: tl.constexpr,
    SIZE_1: tl.constexpr,
    STEP_1: tl.constexpr,
    SIZE_2: tl.constexpr,
    STEP_2: tl.constexpr,
    SIZE_3: tl.constexpr,
    STEP_3: tl.constexpr,
    SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    rest = element
    number = rest % SIZE_3 * STEP_3
    rest = rest // SIZE_3
    number += rest % SIZE_2 * STEP_2
    rest = rest // SIZE_2
    number += rest % SIZE_1 * STEP_1
    rest = rest // SIZE_1
    number += rest * STEP_0
    z = (number.to(tl.int64) + 1).to(tl.uint64) * SPLITMIX_GOLDEN + tl.load(seed).to(tl.uint64)
    z = (z ^ (z >> 30)) * SPLITMIX_1
    z = (z ^ (z >> 27)) * SPLITMIX_2
    z = z ^ (z >> 31)
    keep = (z >> 32).to(tl.int64) >= threshold
    value = loaded(x + element, valid)
    scaled = value * SCALE * keep.to(value.dtype)
    tl.store(result + element, scaled.to(result.dtype.element_ty), mask=valid)


def seeded_dropout(x: Tensor, seed: Tensor, scale: float, threshold: int) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.dropout.seeded_dropout`."""
    x = dense(x)
    steps = row_major_steps(x)
    if len(steps) > DIGITS:
        copy = seeded_dropout(x.contiguous(), seed, scale, threshold)
        return torch.empty_like(x).copy_(copy)
    result = torch.empty_like(x)
    steps = [(1, 0)] * (DIGITS - len(steps)) + steps
    digits = {f"SIZE_{i}": size for i, (size, _) in enumerate(steps) if i}
    digits |= {f"STEP_{i}": step for i, (_, step) in enumerate(steps)}
    launch(_seeded_dropout, x.numel(), x, seed, result, x.numel(), threshold, **digits, SCALE=scale)
    return result


@triton.jit
def _pack_inside(
    x,
    packed,
    count,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    ELEMENTS: tl.constexpr,
    BYTES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    byte = positions(WIDE, BLOCK)
    slab = byte // BYTES
    first = byte - slab * BYTES
    bits = tl.zeros([BLOCK], tl.int32)
    for bit in tl.static_range(8):
        element = first + bit * BYTES
        value = loaded(x + slab * ELEMENTS + element, (byte < count) & (element < ELEMENTS))
        inside = (value > LOW) | (value != value)
        if HIGH is not None:
            inside = inside & ((value < HIGH) | (value != value))
        bits |= (inside & (element < ELEMENTS)).to(tl.int32) << bit
    tl.store(packed + byte, bits.to(tl.uint8), mask=byte < count)


def pack_inside(x: Tensor, packed: Tensor, dim: int, low: float, high: float | None) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.masks.pack_inside`, for a dense ``x``. Fills and
    returns ``packed``, a mask in the memory order of ``x``; ``dim`` is the packed dimension."""
    count = packed.numel()
    if count:
        _pack_inside[grid(count, MASK_BLOCK)](
            x, packed, count, LOW=low, HIGH=high, **_slab(x, packed, dim), BLOCK=MASK_BLOCK
        )
    return packed


@triton.jit
def _masked_gradient(
    gradient,
    packed,
    result,
    count,
    ELEMENTS: tl.constexpr,
    BYTES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    byte = positions(WIDE, BLOCK)
    slab = byte // BYTES
    first = byte - slab * BYTES
    bits = tl.load(packed + byte, mask=byte < count, other=0).to(tl.int32)
    for bit in tl.static_range(8):
        element = first + bit * BYTES
        valid = (byte < count) & (element < ELEMENTS)
        value = tl.load(gradient + slab * ELEMENTS + element, mask=valid & (((bits >> bit) & 1) != 0), other=0.0)
        tl.store(result + slab * ELEMENTS + element, value, mask=valid)


def masked_gradient(gradient: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.masks.masked_gradient`; ``dim`` is the packed
    dimension."""
    gradient = dense(gradient)
    result = torch.empty_like(gradient)
    strides = ordered_strides(mask.shape, gradient if gradient.dim() else mask)
    if mask.stride() != strides:
        mask = mask.new_empty_strided(mask.shape, strides).copy_(mask)
    count = mask.numel()
    if count:
        _masked_gradient[grid(count, MASK_BLOCK)](
            gradient, mask, result, count, **_slab(gradient, mask, dim), BLOCK=MASK_BLOCK
        )
    return result


def _slab(x: Tensor, mask: Tensor, dim: int) -> dict[str, int]:
    if x.dim() == 0:
        return {"ELEMENTS": 1, "BYTES": 1, "WIDE": False}
    # A dimension of one element has no particular place: put it outermost.
    inner = x.stride(dim) if x.shape[dim] != 1 else x.numel()
    size = x.shape[dim]
    return {"ELEMENTS": size * inner, "BYTES": mask.shape[dim] * inner, "WIDE": is_wide(x.numel())}


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
    value = loaded(x + element, valid)
    value -= tl.load(mean + channel).to(value.dtype)
    if weight is not None:
        value *= tl.load(weight + channel).to(value.dtype)
    value *= tl.load(rstd + channel).to(value.dtype)
    if bias is not None:
        value += tl.load(bias + channel).to(value.dtype)
    tl.store(result + element, value.to(result.dtype.element_ty), mask=valid)


def batch_norm_apply(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.norms.batch_norm_apply`."""
    x = dense(x)
    result = torch.empty_like(x)
    places = {"CHANNELS": x.shape[1], "INNER": x.stride(1) if x.shape[1] != 1 else 1}
    launch(_batch_norm_apply, x.numel(), x, mean, rstd, weight, bias, result, x.numel(), **places)
    return result


@triton.jit
def _layer_norm_apply(
    x, mean, rstd, weight, bias, result, count, WIDTH: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    row = element // WIDTH
    column = (element - row * WIDTH).to(tl.int32)
    value = loaded(x + element, valid)
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
    """Write the normalized rows to ``result``; all tensors are contiguous. See
    :func:`loadmaster.executor.memory.implementations.norms.layer_norm_apply`."""
    width = x.numel() // max(1, rstd.numel())
    launch(_layer_norm_apply, x.numel(), x, mean, rstd, weight, bias, result, x.numel(), WIDTH=width)


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
    value = loaded(output + element, valid)
    if bias is not None:
        value -= tl.load(bias + channel).to(value.dtype)
    if weight is not None:
        value /= tl.load(weight + channel).to(value.dtype)
    value /= tl.load(rstd + group).to(value.dtype)
    if mean is not None:
        value += tl.load(mean + group).to(value.dtype)
    tl.store(result + element, value.to(result.dtype.element_ty), mask=valid)


def norm_input(output: Tensor, mean: Tensor | None, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.norms.norm_input`."""
    if rstd.dim() > 1 and rstd.shape[0] == 1 and rstd.shape[1] == output.shape[1] and rstd.numel() == rstd.shape[1]:
        output = dense(output)
        inner = output.stride(1) if output.shape[1] != 1 else 1
        places = {"GROUP": inner, "GROUPS": output.shape[1], "INNER": inner, "CHANNELS": output.shape[1]}
    else:
        output = output.contiguous()
        width = output.numel() // max(1, rstd.numel())
        places = {"GROUP": width, "GROUPS": rstd.numel(), "INNER": 1, "CHANNELS": width}
    result = torch.empty_like(output)
    launch(_norm_input, output.numel(), output, mean, rstd, weight, bias, result, output.numel(), **places)
    return result
