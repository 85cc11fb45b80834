"""Trials of a device's reads of host memory: whether they are right, and faster than the processor gathers.

Some drivers and machines (with confidential computing, for one) let a kernel read host memory and give it something
else. So a table of known contents precedes a device's first one, and some rows of every table are read both ways. Where
they differ, or the kernel is slower on the table itself, the processor gathers rows into pinned memory and they are
copied. The log says so.
"""

from __future__ import annotations

import importlib
import logging
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.graph.features.host_memory import host_empty
from loadmaster.executor.graph.kernels.operators import has_triton

_log = logging.getLogger(__name__)
_CANARY_SHAPE = (257, 129)  # rows longer than a line that begin at every offset in one
_CANARIES = 64
# A smaller table may be in the processor's cache, and takes no time either way.
TRIED_FROM_BYTES = 1 << 26
_TRIAL_BYTES = 1 << 24
_TRIALS = 5
_CLEARLY = 1.05


def gather_kernel() -> Any:
    """The kernel's module, imported when it is first used: machines without a GPU have no Triton."""
    return importlib.import_module("loadmaster.executor.graph.features.gather_kernel")


def by_kernel(table: Tensor, index: Tensor) -> Tensor:
    """Rows read in place by a kernel: [n, ...] on the CUDA device of ``index``, int32 or int64 [n], contiguous.
    ``table`` [rows, ...] is in host memory that the device reads, each row contiguous."""
    result = torch.empty((index.numel(), *table.shape[1:]), dtype=table.dtype, device=index.device)
    gather_kernel().gather(table, index, result)
    return result


def by_processor(table: Tensor, index: Tensor, device: torch.device) -> Tensor:
    """Rows gathered by the processor into pinned memory, then copied: [n, ...] on a device. ``index`` is int32 or int64
    [n] on the host, of rows that the table has."""
    rows = torch.empty((index.numel(), *table.shape[1:]), dtype=table.dtype, pin_memory=device.type == "cuda")
    torch.index_select(table, 0, torch.where(index < 0, index + table.shape[0], index), out=rows)
    return rows.to(device, non_blocking=True)


def reads_in_place(table: Tensor, device: torch.device) -> bool:
    """Return whether rows of this table are gathered by the kernel on this device; the log says why not."""
    reason = _broken(device) or _reason_of(table, device)
    if reason:
        _log.warning(
            "%s does not gather rows from host memory itself: %s. The processor gathers them and copies them there.",
            device,
            reason,
        )
    return not reason


def differing_rows(table: Tensor, device: torch.device, gather: Callable[[Tensor, Tensor], Tensor]) -> int:
    """Return how many of some rows, spread over a table, arrive on a device other than they are."""
    count = min(_CANARIES, table.shape[0])
    index = torch.linspace(0, table.shape[0] - 1, count, dtype=torch.float64).long()
    there, here = (  # bytes of rows: a NaN does not equal itself
        t.contiguous().view(count, -1).view(torch.uint8) for t in (gather(table, index.to(device)).cpu(), table[index])
    )
    return int((there != here).any(1).sum())


def slower_than_processor(seconds: Callable[[Callable[[], Tensor]], float], ways: list[Callable[[], Tensor]]) -> str:
    """The reason to take the second of two ways; empty without one."""
    for way in ways:
        seconds(way)
    taken = [[seconds(way) for way in ways] for _ in range(_TRIALS)]
    kernel, processor = (statistics.median(column) for column in zip(*taken, strict=True))
    if kernel <= processor * _CLEARLY:
        return ""
    return f"on this table that takes {kernel * 1e3:.2f} ms where the processor takes {processor * 1e3:.2f} ms"


def canary_table(device: torch.device) -> Tensor:
    """Make a table of known contents in host memory: int32 [257, 129], which no broken read gives by chance."""
    table = host_empty(_CANARY_SHAPE, torch.int32, device)
    return table.random_(1, 2**31 - 1, generator=torch.Generator().manual_seed(0))


@cache
def _broken(device: torch.device) -> str:
    """The reason why this device cannot read tables in place; empty without one."""
    if not has_triton():
        return "Triton is not installed"
    try:
        wrong = differing_rows(canary_table(device), device, by_kernel)
    except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
        # No compiler, no driver that maps host memory: the processor still gathers.
        return f"the kernel did not run: {error}"
    return f"{wrong} of {_CANARIES} rows with known contents arrived as something else" if wrong else ""


def _reason_of(table: Tensor, device: torch.device) -> str:
    if not table.numel():
        return ""
    wrong = differing_rows(table, device, by_kernel)
    if wrong:
        return f"{wrong} rows of this table arrived as something else"
    row_bytes = table.shape[1:].numel() * table.element_size()
    if table.numel() * table.element_size() < TRIED_FROM_BYTES:
        return ""
    index = torch.randint(0, table.shape[0], (max(1, _TRIAL_BYTES // row_bytes),), device=device)
    ways: list[Callable[[], Tensor]] = [
        lambda: by_kernel(table, index),
        lambda: by_processor(table, index.cpu(), device),
    ]
    return slower_than_processor(lambda way: _seconds(way, device), ways)


def _seconds(way: Callable[[], Tensor], device: torch.device) -> float:
    torch.cuda.synchronize(device)
    start_s = time.perf_counter()
    way()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start_s
