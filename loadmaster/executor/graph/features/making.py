"""Makes unified tensors: from a tensor, without contents, from a file of features in place."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.features.host_memory import host_empty, mapped_file
from loadmaster.executor.graph.features.unified_tensor import (
    Affinity,
    UnifiedTensor,
    expect_affinity,
    is_read_in_place,
    no_gradient,
)

_log = logging.getLogger(__name__)


def unified(
    tensor: Tensor, affinity: Affinity = "gpu", device: torch.device | str | None = None, *, debug: bool = False
) -> UnifiedTensor:
    """A unified tensor with the contents of another tensor, copied into memory that the device reads.

    Args:
        affinity: "gpu": results of operators are CUDA tensors. "host": they are unified, as preprocessing needs it.
        device: that reads it. None is the current CUDA device, or the host where there is none.
        debug: hold every index against the number of rows. The host then waits for the GPU at each read.

    Raises:
        InputError: a tensor that needs a gradient or is sparse, an unknown affinity or device, no memory.
    """
    reader = _reader(affinity, device)
    if tensor.requires_grad:
        raise no_gradient(tensor)
    if tensor.layout != torch.strided:
        raise InputError("tensor", str(tensor.layout), "has no rows in memory", "Give a dense tensor: to_dense().")
    if isinstance(tensor, UnifiedTensor):
        tensor = tensor.cpu_view
    host = host_empty(tensor.shape, tensor.dtype, reader)
    return _made(host.copy_(tensor), affinity, reader, debug)


def unified_empty(
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    affinity: Affinity = "gpu",
    device: torch.device | str | None = None,
    *,
    debug: bool = False,
) -> UnifiedTensor:
    """A unified tensor without contents, to be filled part by part: no second copy of a large table is needed.
    ``affinity``, ``device``, ``debug`` and errors are as for :func:`unified`."""
    reader = _reader(affinity, device)
    return _made(host_empty(shape, dtype, reader), affinity, reader, debug)


def unified_file(
    path: str | Path,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    affinity: Affinity = "gpu",
    device: torch.device | str | None = None,
    *,
    debug: bool = False,
) -> UnifiedTensor:
    """A unified tensor over a file, read where the system mapped it. Nobody may write to it.

    Where the system lets no device read mapped files, the file is read into memory of its own, and the log says so.

    Args:
        path: a file of numpy (``.npy``), or one with the elements in order and nothing else.
        shape, dtype: numpy's files say them themselves.
        affinity, device, debug: as for :func:`unified`.

    Raises:
        InputError: no such file, a file with another shape, dtype or number of bytes, or as for :func:`unified`.
    """
    reader, path = _reader(affinity, device), Path(path)
    if not path.is_file():
        raise InputError("path", str(path), "is no file", "Name a file of features.")
    begin_bytes = 0
    if path.suffix == ".npy":
        begin_bytes, shape, dtype = _numpy_layout(path, shape, dtype)
    if shape is None or dtype is None:
        raise InputError("shape", shape, "is not in the file, nor its dtype", "Give shape and dtype.")
    needed_bytes, has_bytes = math.prod(shape) * dtype.itemsize, path.stat().st_size - begin_bytes
    if needed_bytes != has_bytes or not needed_bytes:
        problem = f"does not hold {list(shape)} of {dtype}, which are {needed_bytes} bytes"
        remedy = "Give the shape and dtype that the file was written with."
        raise InputError("path", f"{path}: {has_bytes} bytes of elements", problem, remedy)
    contents, failure = mapped_file(path, reader)
    table = contents[begin_bytes:].view(dtype).view(tuple(shape))
    if failure:
        _log.warning("%s is read into memory: %s cannot read it where it is mapped (%s).", path, reader, failure)
        return _made(host_empty(table.shape, dtype, reader).copy_(table), affinity, reader, debug)
    made = _made(table, affinity, reader, debug)
    made.writable = False
    return made


def _made(host: Tensor, affinity: Affinity, reader: torch.device, debug: bool) -> UnifiedTensor:
    in_place = is_read_in_place(host, reader)
    return UnifiedTensor(host, affinity=affinity, result_device=reader, debug=debug, in_place=in_place)


def _reader(affinity: str, device: torch.device | str | None) -> torch.device:
    """The device that reads a table of a known affinity: with its number, if it is a CUDA device."""
    expect_affinity(affinity)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InputError("device", device, "is no device", 'Say "cuda", "cuda:1" or "cpu".') from error
    if found.type == "cpu":
        return found
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type != "cuda" or (found.index or 0) >= count:
        remedy = 'Say "cpu".'
        raise InputError("device", str(device), f"cannot read host memory here: there are {count} CUDA devices", remedy)
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def _numpy_layout(
    path: Path, shape: Sequence[int] | None, dtype: torch.dtype | None
) -> tuple[int, Sequence[int], torch.dtype]:
    """Read where the elements of numpy's file begin, their shape and dtype; what was given must agree."""
    try:
        array = np.load(path, mmap_mode="r")
        found = torch.from_numpy(np.empty(0, array.dtype)).dtype
    except (ValueError, TypeError, OSError) as error:
        remedy = "Save a numeric array: numpy.save(path, array)."
        raise InputError("path", str(path), f"cannot be mapped: {error}", remedy) from error
    if not array.flags.c_contiguous:
        remedy = "Save numpy.ascontiguousarray(array)."
        raise InputError("path", str(path), "has its columns in one piece, not its rows", remedy)
    for name, given, is_there in (
        ("shape", None if shape is None else tuple(shape), array.shape),
        ("dtype", dtype, found),
    ):
        if given is not None and given != is_there:
            raise InputError(name, given, f"is not that of {path}, which is {is_there}", f"Leave {name} out.")
    return int(array.offset), array.shape, found
