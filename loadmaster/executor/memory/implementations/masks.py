"""Masks of one bit per element: what a clamping activation's backward needs to know about its input.

Bit ``i % 8`` of byte ``i // 8`` says whether element i, in row-major order, lies strictly inside the interval.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.memory.implementations.kernels import has_kernels, kernels

BITS = 8


def _bit_values(device: torch.device) -> Tensor:
    return torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.uint8, device=device)


@torch.library.custom_op("loadmaster::pack_inside", mutates_args=())
def pack_inside(x: Tensor, low: float, high: float | None = None) -> Tensor:
    """One bit per element: not ``x <= low`` and (where high is given) not ``x >= high``.

    Args:
        x: any shape and dtype with an order. A NaN counts as inside, as it does in PyTorch's own backward.

    Returns:
        uint8 [ceil(x.numel() / 8)].
    """
    if has_kernels(x.device):
        packed: Tensor = kernels().pack_inside(x, low, high)
        return packed
    inside = ~(x <= low)
    if high is not None:
        inside &= ~(x >= high)
    flat = torch.nn.functional.pad(inside.reshape(-1).view(torch.uint8), (0, -x.numel() % BITS))
    return (flat.view(-1, BITS) * _bit_values(x.device)).sum(1, dtype=torch.uint8)


@pack_inside.register_fake
def _(x: Tensor, low: float, high: float | None = None) -> Tensor:
    return x.new_empty(((x.numel() + BITS - 1) // BITS,), dtype=torch.uint8)


@torch.library.custom_op("loadmaster::masked_gradient", mutates_args=())
def masked_gradient(gradient: Tensor, mask: Tensor) -> Tensor:
    """The gradient where the element's bit is set, zero elsewhere.

    Args:
        gradient: any shape.
        mask: uint8 [ceil(gradient.numel() / 8)] from :func:`pack_inside`.

    Returns:
        A new tensor like ``gradient``.
    """
    expect_bytes(gradient, mask)
    if has_kernels(gradient.device):
        masked: Tensor = kernels().masked_gradient(gradient, mask)
        return masked
    inside = (mask.unsqueeze(1) & _bit_values(mask.device)).view(-1)[: gradient.numel()] != 0
    return gradient.clone().masked_fill_(~inside.view(gradient.shape), 0)


@masked_gradient.register_fake
def _(gradient: Tensor, mask: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def expect_bytes(gradient: Tensor, mask: Tensor) -> None:
    """Refuse a mask that was packed from another number of elements.

    Raises:
        InputError: naming the number of bytes that fits.
    """
    expected = (gradient.numel() + BITS - 1) // BITS
    if mask.dtype != torch.uint8 or mask.shape != (expected,):
        raise InputError(
            "mask",
            (tuple(mask.shape), str(mask.dtype)),
            f"does not fit a gradient of {gradient.numel()} elements",
            f"Pass the {expected} bytes that pack_inside made from the tensor of the same shape.",
        )
