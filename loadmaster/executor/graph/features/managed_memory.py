"""Host memory that a GPU maps in large pages: CUDA's managed memory, told to stay on the host.

Memory that is pinned is mapped in pages of 4 KiB, wherever it is, and a GPU that reads rows anywhere in a large table
looks up a page for nearly every row. Managed memory moves to whoever reads it, unless it is told where to stay and who
reads it from there. PyTorch makes none, so CUDA's driver is called here.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

PAGE_BYTES = 1 << 21  # of CUDA's largest pages on the host
# Of cuda.h.
_ATTACH_GLOBAL = 1
_STAY_AT, _IS_READ_BY = 3, 5  # advice
_HOST = -1
_READS_WHILE_HOST_DOES = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
_DEVICE_POINTER = 3


def managed(size_bytes: int, device: torch.device) -> tuple[int, str]:
    """Allocate memory on the host for a device to read.

    Args:
        size_bytes: at least one; whole pages are taken.
        device: a CUDA device.

    Returns:
        where it begins, and ""; or 0, and why there is none. Pages come to be where the host first writes.
    """
    torch.cuda.synchronize(device)  # the device's context is there and current from here on
    pages_bytes = ctypes.c_size_t(-(-size_bytes // PAGE_BYTES) * PAGE_BYTES)
    address, ordinal, can = ctypes.c_uint64(), ctypes.c_int(), ctypes.c_int()
    with torch.cuda.device(device):
        failure = (
            _failure("cuDeviceGet", ctypes.byref(ordinal), torch.cuda.current_device())
            or _failure("cuDeviceGetAttribute", ctypes.byref(can), _READS_WHILE_HOST_DOES, ordinal)
            or ("" if can.value else "the device and the host cannot use it at the same time")
            or _failure("cuMemAllocManaged", ctypes.byref(address), pages_bytes, _ATTACH_GLOBAL)
        )
        if failure:
            return 0, failure
        failure = _failure("cuMemAdvise", address, pages_bytes, _STAY_AT, _HOST) or _failure(
            "cuMemAdvise", address, pages_bytes, _IS_READ_BY, ordinal
        )
    if failure:
        free(address.value, device)
        return 0, failure
    return address.value, ""


def free(address: int, device: torch.device) -> None:
    """Give managed memory back when the device has read what it was told to read."""
    torch.cuda.synchronize(device)
    with torch.cuda.device(device):
        _failure("cuMemFree_v2", ctypes.c_uint64(address))


def is_mapped(address: int) -> bool:
    """Return whether a CUDA device may read at an address of the host."""
    there = ctypes.c_uint64()
    try:
        return not _failure("cuPointerGetAttribute", ctypes.byref(there), _DEVICE_POINTER, ctypes.c_uint64(address))
    except OSError:  # no driver
        return False


def _failure(call: str, *args: Any) -> str:
    """Call the driver; return what went wrong, or an empty string."""
    status = getattr(_driver(), call)(*args)
    if not status:
        return ""
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    return f"{call}: {(text.value or b'unknown error').decode()}"


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")
