"""Host memory that GPUs read in place: allocated for CUDA, or a file's where the system mapped it.

A table is in CUDA's managed memory, which a GPU maps in large pages. Pinned memory is mapped in pages of 4 KiB, and a
GPU that reads rows anywhere in a large table looks up a page for nearly every row. Managed memory moves to whoever
reads it unless it is told where to stay and who reads it from there. PyTorch makes none, so CUDA's driver is called
here.

Where there is none, a table is page-locked: memory from the system, registered with CUDA. So is a file. (PyTorch rounds
what it pins up to a power of two, up to twice the table's size.) Memory stays until the last tensor on it is gone and
the device has read it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.steps.host_link import host_bytes

_log = logging.getLogger(__name__)
# Flags of cudaHostRegister: every context may read, at a device address, and no device writes.
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8
PAGE_BYTES = 1 << 21  # of CUDA's largest pages on the host
# Of cuda.h.
_ATTACH_GLOBAL = 1
_STAY_AT, _IS_READ_BY = 3, 5  # advice
_HOST = -1
_READS_WHILE_HOST_DOES = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
_DEVICE_POINTER = 3


def managed(size_bytes: int, device: torch.device) -> tuple[int, str]:
    """Allocate whole pages of host memory for a device to read: (address, ""), or (0, why there is none). Pages come to
    be where the host first writes."""
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


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous host tensor that a device reads in place, of any contents; an ordinary one where the device is the
    host. It begins with a page. InputError: so much host memory cannot be had or locked."""
    size_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cuda" or not size_bytes:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    if size_bytes > host_bytes():  # managed memory is promised beyond that, and the process ended when it is written
        raise _no_memory(size_bytes, f"the host has {host_bytes()}")
    address, failure = managed(size_bytes, device)
    if failure:
        _log.warning("No managed memory for %s (%s): rows are read through small pages, slower.", device, failure)
        memory = _locked(size_bytes, device)
    else:
        memory = _tensor_on(None, address, size_bytes, partial(free, address, device))
        memory.zero_()  # by all threads, and before the device: so its pages are the host's, large, and mapped
    return memory.view(dtype).view(tuple(shape))


def mapped_file(path: Path, device: torch.device) -> tuple[Tensor, str]:
    """The bytes of a non-empty file, mapped for reading: uint8 [bytes], which nobody may write to. Also why a CUDA
    device cannot read them there; "" where it can."""
    contents = np.memmap(path, np.uint8, mode="r")
    address, size_bytes = int(contents.ctypes.data), int(contents.size)
    failure = ""
    if device.type == "cuda":
        failure = _register(address, size_bytes, device, _PORTABLE | _MAPPED | _READ_ONLY)
    registered = device.type == "cuda" and not failure
    give_back = partial(_unregister, address, device) if registered else None
    return _tensor_on(contents, address, size_bytes, give_back), failure


def expect_readable(table: Tensor, device: torch.device) -> None:
    """Refuse host memory that a device cannot read in place."""
    if device.type == "cuda" and table.numel() and not is_mapped(table.data_ptr()):
        problem = f"lies in ordinary memory, which {device} cannot read"
        remedy = "Make it with unified(tensor), or with pin_memory=True."
        raise InputError("table", f"{tuple(table.shape)} on {table.device}", problem, remedy)


def _locked(size_bytes: int, device: torch.device) -> Tensor:
    """Page-locked memory from the system, registered with CUDA: uint8 [size_bytes]."""
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise _no_memory(size_bytes, str(error)) from error
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    failure = _register(address, size_bytes, device, _PORTABLE | _MAPPED)
    if failure:
        raise _no_memory(size_bytes, failure)
    return _tensor_on(memory, address, size_bytes, partial(_unregister, address, device))


def _tensor_on(owner: object, address: int, size_bytes: int, give_back: Callable[[], None] | None) -> Tensor:
    """Tensor on memory that its owner keeps until the tensor dies and ``give_back`` has run: uint8 [size_bytes]."""
    block = (ctypes.c_char * size_bytes).from_address(address)
    weakref.finalize(block, _let_go, owner, give_back).atexit = False  # a process that ends frees all
    return torch.frombuffer(block, dtype=torch.uint8)


def _let_go(owner: object, give_back: Callable[[], None] | None) -> None:
    if give_back is not None:
        give_back()


def _unregister(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a kernel may still read it
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _register(address: int, size_bytes: int, device: torch.device, flags: int) -> str:
    """Register memory with CUDA; return why it failed, or an empty string."""
    with torch.cuda.device(device):
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = cudart.cudaHostRegister(address, size_bytes, flags)
        if int(status) == int(cudart.cudaError.success):
            return ""
        reason = str(cudart.cudaGetErrorString(status))
    _take_last_error(device)
    return reason


def _take_last_error(device: torch.device) -> None:
    """Launch something, to which CUDA reports its last error once more, so that no other launch gets it."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def _no_memory(size_bytes: int, reason: str) -> InputError:
    remedy = "Take fewer rows or a smaller dtype, or let the process lock more memory (ulimit -l)."
    return InputError("host memory", f"{size_bytes} bytes", f"cannot be had: {reason}", remedy)
