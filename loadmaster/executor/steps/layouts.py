"""Dense tensors in the order of their elements in memory, whichever dimension that begins with.

A tensor is *dense* here if its elements fill its memory without gaps or overlaps: row-major, channels last, and every
other permutation. Elementwise work on dense tensors goes through memory from one end to the other, with no copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill the tensor's memory without gaps or overlaps."""
    return tensor.numel() == 0 or fills(tensor.shape, tensor.stride())


def fills(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements of this shape and these strides fill their memory without gaps or overlaps."""
    expected = 1
    for step, length in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= length
    return True


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor itself where it is dense; else a copy with the strides that ``torch.empty_like`` gives."""
    return tensor if is_dense(tensor) else torch.empty_like(tensor).copy_(tensor)


def dense_bytes(tensor: Tensor) -> int:
    """Bytes that :func:`dense` allocates for a tensor."""
    return 0 if is_dense(tensor) else tensor.numel() * tensor.element_size()


def ordered_strides(shape: Sequence[int], like: Tensor) -> tuple[int, ...]:
    """Strides of a dense tensor of this shape whose dimensions have the memory order of those of ``like``."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (like.stride(d), -d)):
        strides[d] = step
        step *= max(1, int(shape[d]))
    return tuple(strides)


def row_major_steps(tensor: Tensor) -> list[tuple[int, int]]:
    """Memory order of the elements, in row-major numbers: (size, step) from the slowest dimension on. The i-th element
    in memory, i written in the mixed radix of the sizes, is number ``sum(digit * step)`` in row-major order.
    Neighbouring dimensions that continue one another are merged; a row-major tensor has one pair."""
    row_major = torch.empty(tensor.shape, device="meta").stride()
    pairs: list[tuple[int, int]] = []
    varying = [d for d in range(tensor.dim()) if tensor.shape[d] != 1]
    for d in sorted(varying, key=tensor.stride, reverse=True):
        size, step = int(tensor.shape[d]), int(row_major[d])
        if pairs and pairs[-1][1] == size * step:
            pairs[-1] = (pairs[-1][0] * size, step)
        else:
            pairs.append((size, step))
    return pairs or [(1, 1)]
