"""Ways to run these implementations: Triton kernels on a GPU, elsewhere PyTorch operators chunk by chunk."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 16  # elements at a time; a multiple of 8, so that packed masks end on whole bytes


@cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def has_kernels(device: torch.device) -> bool:
    """Return whether a device is a CUDA device with Triton installed. One that is elsewhere is taken to have it."""
    return device.type == "cuda" and (_triton_is_installed() or not torch.cuda.is_available())


def kernels() -> Any:
    """The Triton kernels' module, imported when it is first used: machines without a GPU have no Triton."""
    return importlib.import_module("loadmaster.executor.memory.implementations.triton_kernels")


def exact(dtype: torch.dtype) -> torch.dtype:
    """Type that sums are computed in: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def like_first(x: Tensor, *_: object) -> Tensor:
    """Fake result of an operator that returns a new tensor like its first argument."""
    return torch.empty_like(x)


def chunks(count: int) -> Iterator[slice]:
    """Slices of :data:`CHUNK` elements that cover ``range(count)``."""
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def row_major_bytes(tensor: Tensor) -> int:
    """Bytes that :meth:`Tensor.contiguous` allocates."""
    return 0 if tensor.is_contiguous() else tensor.numel() * tensor.element_size()
