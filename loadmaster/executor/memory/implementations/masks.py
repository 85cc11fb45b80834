"""Masks of one bit per element: what a clamping activation's backward needs to know about its input.

Eight elements along one dimension share a byte: with D elements in that dimension and B = ceil(D / 8) bytes, bit j of
byte k belongs to element ``j * B + k``. A mask so has the shape of its tensor with B in place of D, and takes any
memory layout that a tensor can have. Kernels read and write both from one end of memory to the other, compilers fuse
them in whatever layout they chose, and a gradient of another layout costs a copy of the mask alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.costs.limits import register_limits
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels, like_first
from loadmaster.executor.steps.layouts import dense, dense_bytes, ordered_strides
from loadmaster.executor.torch_private.operators import overload_of

BITS = 8
IMAGE_DIMENSIONS = 4  # from here on the second dimension is the channels


def packed_dim(shape: Sequence[int]) -> int:
    """The dimension whose elements share bytes: the one with the fewest spare bits, channels or the last preferred."""
    if not shape:
        return 0
    preferred = 1 if len(shape) >= IMAGE_DIMENSIONS else len(shape) - 1
    candidates = [preferred, *reversed(range(len(shape)))]
    return min(candidates, key=lambda d: packed_size(shape[d]) * BITS / max(1, shape[d]))


def packed_size(size: int) -> int:
    """Bytes for this many elements of the packed dimension."""
    return -(-size // BITS)


def packed_shape(shape: Sequence[int]) -> list[int]:
    """Shape of the mask of a tensor of this shape; [1] for a scalar."""
    if not shape:
        return [1]
    packed = [int(size) for size in shape]
    dim = packed_dim(packed)
    packed[dim] = packed_size(packed[dim])
    return packed


def empty_mask(x: Tensor) -> Tensor:
    """A mask to fill, in the memory order of ``x``."""
    shape = packed_shape(x.shape)
    return x.new_empty_strided(shape, ordered_strides(shape, x if x.dim() else x.view(1)), dtype=torch.uint8)


def _planes(x: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Views for each bit: the elements that it belongs to, and the bytes that hold it."""
    x = x if x.dim() else x.view(1)
    dim = packed_dim(x.shape)
    count = mask.shape[dim]
    pairs = []
    for start in range(0, x.shape[dim], max(1, count)):
        length = min(count, x.shape[dim] - start)
        pairs.append((x.narrow(dim, start, length), mask.narrow(dim, 0, length)))
    return pairs


@torch.library.custom_op("loadmaster::pack_inside", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def pack_inside(x: Tensor, low: float, high: float | None = None) -> Tensor:
    """One bit per element of any shape and ordered dtype: not ``x <= low`` and (where high is given) not ``x >= high``.
    A NaN counts as inside, as it does in PyTorch's own backward. Returns uint8 [:func:`packed_shape` of x], in the
    memory order of ``x``; spare bits are 0."""
    if has_kernels(x.device):
        x = dense(x)
        packed: Tensor = kernels().pack_inside(x, empty_mask(x), packed_dim(x.shape), low, high)
        return packed
    mask = empty_mask(x).zero_()
    for bit, (elements, bits) in enumerate(_planes(x, mask)):
        inside = (elements <= low).logical_not_()
        if high is not None:
            inside &= (elements >= high).logical_not_()
        bits.bitwise_or_(inside.view(torch.uint8) << bit)
    return mask


@torch.library.custom_op("loadmaster::masked_gradient", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def masked_gradient(gradient: Tensor, mask: Tensor) -> Tensor:
    """The gradient where the element's bit is set, zero elsewhere, in a new tensor like it. ``mask`` is uint8 from
    :func:`pack_inside` of a tensor of that shape, of this layout or another."""
    expect_fitting(gradient, mask)
    if has_kernels(gradient.device):
        masked: Tensor = kernels().masked_gradient(gradient, mask, packed_dim(gradient.shape))
        return masked
    result = torch.empty_like(gradient).copy_(gradient)
    for bit, (elements, bits) in enumerate(_planes(result, mask)):
        elements.masked_fill_((bits & (1 << bit)) == 0, 0)
    return result


def _mask_bytes(x: Tensor) -> int:
    return x.numel() // BITS + BITS


def _pack_workspace(x: Tensor, low: float, high: float | None = None) -> int:
    return dense_bytes(x) if has_kernels(x.device) else (2 if high is None else 3) * _mask_bytes(x)


def _masked_workspace(gradient: Tensor, mask: Tensor) -> int:
    if not has_kernels(gradient.device):
        return 2 * _mask_bytes(gradient)
    same = mask.stride() == ordered_strides(mask.shape, gradient if gradient.dim() else mask)
    return dense_bytes(gradient) + (0 if same else mask.numel())


pack_inside.register_fake(lambda x, *_: empty_mask(x))
masked_gradient.register_fake(like_first)
register_workspace(overload_of(pack_inside), _pack_workspace)
register_workspace(overload_of(masked_gradient), _masked_workspace)
register_limits(overload_of(masked_gradient), lambda _: {})  # each bit of the mask may be either


def expect_fitting(gradient: Tensor, mask: Tensor) -> None:
    """Raise an InputError, naming the shape that fits, for a mask that was packed from a tensor of another shape."""
    expected = packed_shape(gradient.shape)
    if mask.dtype != torch.uint8 or list(mask.shape) != expected:
        found = (tuple(mask.shape), str(mask.dtype))
        problem = f"does not fit a gradient of shape {tuple(gradient.shape)}"
        remedy = f"Pass the uint8 {expected} that pack_inside made from a tensor of that shape."
        raise InputError("mask", found, problem, remedy)
