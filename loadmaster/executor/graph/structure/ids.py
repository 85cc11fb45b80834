"""Ids of nodes and edges as tensors: which integer holds them, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InputError

INT32_IDS = 2**31 - 1  # ids beyond need 64 bits
ID_DTYPES = (torch.int32, torch.int64)


def id_tensor(field: str, value: Any, device: torch.device | str | None = None) -> Tensor:
    """One-dimensional integer ids from a tensor, an array or a list.

    Raises:
        InputError: naming ``field``.
    """
    try:
        ids = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(field, value, "are no ids", "Give a tensor, an array or a list of integers.") from None
    if ids.numel() == 0 and ids.dim() == 1:
        ids = ids.to(torch.int64) if ids.is_floating_point() else ids
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        found = f"{ids.dtype} {list(ids.shape)}"
        raise InputError(field, found, "are no ids", "Give one-dimensional int32 or int64 ids.")
    return ids if device is None else ids.to(device)


def choose_dtype(wanted: torch.dtype | None, largest: int) -> torch.dtype:
    """Dtype of ids up to ``largest``: int32 where they fit, or what is wanted.

    Raises:
        InputError: int32 is wanted and too small, or what is wanted is neither int32 nor int64.
    """
    if wanted is None:
        return torch.int32 if largest <= INT32_IDS else torch.int64
    if wanted not in ID_DTYPES:
        raise InputError("id_dtype", wanted, "holds no ids", "Give torch.int32 or torch.int64.")
    if wanted == torch.int32 and largest > INT32_IDS:
        raise InputError("id_dtype", wanted, f"is too small for {largest} nodes or edges", "Give torch.int64.")
    return wanted


def expect_within(field: str, ids: Tensor, count: int, what: str = "node") -> None:
    """Refuse ids that name nothing. Waits for the device.

    Raises:
        InputError: naming an id that is out of range.
    """
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= count:
        found = low if low < 0 else high
        remedy = f"Use ids from 0 to {count - 1}." if count else f"There is no {what}."
        raise InputError(field, found, f"names no {what}", remedy)
