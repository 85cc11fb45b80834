"""Masks of one bit per element: what a clamping activation's backward needs to know about its input.

Bit ``i % 8`` of byte ``i // 8`` says whether element i, in row-major order, lies strictly inside the interval.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.costs.workspace import register_workspace
from loadmaster.executor.memory.implementations.chunks import chunk_bytes, chunks, laid_out_like, row_major_bytes
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
    flat, values = x.reshape(-1), _bit_values(x.device)
    packed = x.new_empty(_mask_shape(x), dtype=torch.uint8)
    for part in chunks(x.numel()):
        inside = ~(flat[part] <= low)
        if high is not None:
            inside &= ~(flat[part] >= high)
        bits = torch.nn.functional.pad(inside.view(torch.uint8), (0, -inside.numel() % BITS)).view(-1, BITS)
        torch.sum(bits * values, 1, dtype=torch.uint8, out=packed[part.start // BITS : -(-part.stop // BITS)])
    return packed


@pack_inside.register_fake
def _(x: Tensor, low: float, high: float | None = None) -> Tensor:
    return x.new_empty(_mask_shape(x), dtype=torch.uint8)


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
    result, values = gradient.clone(memory_format=torch.contiguous_format), _bit_values(mask.device)
    flat = result.view(-1)
    for part in chunks(gradient.numel()):
        bits = mask[part.start // BITS : -(-part.stop // BITS)].unsqueeze(1) & values
        flat[part].masked_fill_(bits.view(-1)[: part.stop - part.start] == 0, 0)
    return laid_out_like(result, gradient)


@masked_gradient.register_fake
def _(gradient: Tensor, mask: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def _pack_workspace(x: Tensor, low: float, high: float | None = None) -> int:
    return row_major_bytes(x) + (0 if has_kernels(x.device) else chunk_bytes(x, 4))


def _masked_workspace(gradient: Tensor, mask: Tensor) -> int:
    copies = 2 if has_kernels(gradient.device) else 1
    return copies * row_major_bytes(gradient) + (0 if copies == 2 else chunk_bytes(gradient, 2))


register_workspace(pack_inside._opoverload, _pack_workspace)
register_workspace(masked_gradient._opoverload, _masked_workspace)


def _mask_shape(x: Tensor) -> tuple[int]:
    return ((x.numel() + BITS - 1) // BITS,)


def expect_bytes(gradient: Tensor, mask: Tensor) -> None:
    """Refuse a mask that was packed from another number of elements.

    Raises:
        InputError: naming the number of bytes that fits.
    """
    expected = _mask_shape(gradient)
    if mask.dtype != torch.uint8 or mask.shape != expected:
        raise InputError(
            "mask",
            (tuple(mask.shape), str(mask.dtype)),
            f"does not fit a gradient of {gradient.numel()} elements",
            f"Pass the {expected[0]} bytes that pack_inside made from the tensor of the same shape.",
        )
