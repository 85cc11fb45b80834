"""Elementwise work in chunks, so that temporaries stay small, on tensors of any memory layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

CHUNK = 1 << 16  # elements at a time; a multiple of 8, so that packed masks end on whole bytes


def chunks(count: int) -> Iterator[slice]:
    """Slices of :data:`CHUNK` elements that cover ``range(count)``."""
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def laid_out_like(result: Tensor, like: Tensor) -> Tensor:
    """A contiguous result with the strides that ``torch.empty_like(like)`` gives: itself where they agree."""
    if like.is_contiguous():
        return result
    layout = torch.empty_like(like)
    return result if layout.stride() == result.stride() else layout.copy_(result)


def row_major_bytes(tensor: Tensor) -> int:
    """Bytes that :meth:`Tensor.contiguous` allocates."""
    return 0 if tensor.is_contiguous() else tensor.numel() * tensor.element_size()


def chunk_bytes(tensor: Tensor, per_element: int) -> int:
    """Temporaries of one chunk, where each element needs this many bytes."""
    return min(tensor.numel(), CHUNK) * per_element
