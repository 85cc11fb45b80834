"""Made-up values that operators accept: positions, offsets, counts, masks and matrices of a certain kind.

Each is written into a tensor in place. Random ones come from a generator, so that they are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

Fill = Callable[[Tensor, Generator], object]
"""Writes values into a tensor."""


def anything(tensor: Tensor, generator: Generator) -> None:
    """Values for arguments that are only copied, compared or computed with. Floating-point numbers are uniform in [0.1,
    1), which no operator overflows or divides by zero on, and which are probabilities. Booleans are True in half of the
    places. Integers are 1."""
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        tensor.uniform_(0.1, 1.0, generator=generator)
    elif tensor.dtype == torch.bool:
        tensor.random_(0, 2, generator=generator)
    else:
        tensor.fill_(0.5 if tensor.dtype.is_floating_point else 1)


def constant(value: int) -> Fill:
    """Make a fill that writes the same number everywhere."""
    return lambda tensor, _: tensor.fill_(value)


zeros = constant(0)


class HostZeros:
    """Zeros in host memory, whatever the device: for numbers that an operator reads on the processor."""

    def __call__(self, tensor: Tensor, _: Generator) -> None:
        """Write zeros into the tensor, which is in host memory."""
        tensor.zero_()


def below(count: int) -> Fill:
    """Random whole numbers from 0 to below ``count``: positions in a dimension, or classes."""
    return lambda tensor, generator: tensor.random_(
        0, max(1, min(count, torch.iinfo(tensor.dtype).max)), generator=generator
    )


def mask(tensor: Tensor, generator: Generator) -> None:
    """Booleans, or bytes that stand for them: 1 in half of the places."""
    tensor.random_(0, 2, generator=generator)


def starts(total: int) -> Fill:
    """Positions where equal parts of ``total`` things begin."""
    return lambda tensor, _: tensor.copy_(_bounds(tensor, total, tensor.numel())[:-1])


def bounds(total: int) -> Fill:
    """Positions where equal parts of ``total`` things begin, and where the last one ends."""
    return lambda tensor, _: tensor.copy_(_bounds(tensor, total, tensor.numel() - 1))


def ends(total: int, multiple: int) -> Fill:
    """Positions where about equal parts of ``total`` things end, each a multiple of ``multiple``."""
    return lambda tensor, _: tensor.copy_(_bounds(tensor, total, tensor.numel())[1:] // multiple * multiple)


def shares(total: int) -> Fill:
    """Counts that add up to ``total``."""
    return lambda tensor, _: tensor.copy_(_bounds(tensor, total, tensor.numel()).diff().view(tensor.shape))


def part_of_each(total: int) -> Fill:
    """Number of the part, of ``total`` parts, that each of the tensor's things is in: ascending."""

    def fill(tensor: Tensor, _: Generator) -> None:
        places = torch.arange(tensor.numel(), device=tensor.device)
        tensor.copy_((places * total // max(1, tensor.numel())).view(tensor.shape))

    return fill


def at_most(count: int) -> Fill:
    """A mask that is True in no more than ``count`` places."""

    def fill(tensor: Tensor, _: Generator) -> None:
        places = torch.arange(tensor.numel(), device=tensor.device)
        tensor.copy_((places < min(count, tensor.numel() // 2)).view(tensor.shape))

    return fill


def pivots(tensor: Tensor, _: Generator) -> None:
    """Rows that a factorization exchanges, counted from 1: each with itself."""
    tensor.copy_(torch.arange(1, tensor.shape[-1] + 1, device=tensor.device).expand(tensor.shape))


def dominant(tensor: Tensor, generator: Generator) -> None:
    """Matrices whose diagonal outweighs all else: invertible, and definite if only a triangle is read."""
    anything(tensor, generator)
    tensor.diagonal(dim1=-2, dim2=-1).add_(max(tensor.shape[-2:]))


def _bounds(like: Tensor, total: int, parts: int) -> Tensor:
    return torch.arange(parts + 1, device=like.device) * total // max(1, parts)


def product(sizes: object) -> int:
    """Product of whole numbers, such as those of a shape."""
    assert isinstance(sizes, list | tuple)
    return math.prod(int(size) for size in sizes)
