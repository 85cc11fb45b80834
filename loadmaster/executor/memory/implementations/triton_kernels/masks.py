# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Packed masks. In memory order a tensor is slabs of ``ELEMENTS``, and its mask slabs of ``BYTES``.

A slab is the packed dimension with everything inside it; bit j of a slab's byte r belongs to its element
``j * BYTES + r``, so that eight loads with one address calculation cover what a byte holds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.triton_kernels.launch import grid, is_wide, positions
from loadmaster.executor.steps.layouts import dense, ordered_strides

BLOCK = 512  # bytes of a mask per program


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
        value = tl.load(x + slab * ELEMENTS + element, mask=(byte < count) & (element < ELEMENTS), other=0.0)
        if value.dtype != tl.float64:
            value = value.to(tl.float32)
        inside = (value > LOW) | (value != value)
        if HIGH is not None:
            inside = inside & ((value < HIGH) | (value != value))
        bits |= (inside & (element < ELEMENTS)).to(tl.int32) << bit
    tl.store(packed + byte, bits.to(tl.uint8), mask=byte < count)


def pack_inside(x: Tensor, packed: Tensor, dim: int, low: float, high: float | None) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.masks.pack_inside`.

    Args:
        x: dense.
        packed: the mask to fill, in the memory order of ``x``; it is returned.
        dim: the packed dimension.
    """
    count = packed.numel()
    if count:
        _pack_inside[grid(count, BLOCK)](x, packed, count, LOW=low, HIGH=high, **_slab(x, packed, dim), BLOCK=BLOCK)
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
        _masked_gradient[grid(count, BLOCK)](gradient, mask, result, count, **_slab(gradient, mask, dim), BLOCK=BLOCK)
    return result


def _slab(x: Tensor, mask: Tensor, dim: int) -> dict[str, int]:
    if x.dim() == 0:
        return {"ELEMENTS": 1, "BYTES": 1, "WIDE": False}
    # A dimension of one element has no particular place: put it outermost.
    inner = x.stride(dim) if x.shape[dim] != 1 else x.numel()
    size = x.shape[dim]
    return {"ELEMENTS": size * inner, "BYTES": mask.shape[dim] * inner, "WIDE": is_wide(x.numel())}
