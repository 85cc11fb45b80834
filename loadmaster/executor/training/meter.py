"""Meters of a device: times and bytes at moments of a step, and the rates of its link to the host."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple, Protocol

import torch

from loadmaster.executor.steps.measure import mark, seconds

_BUSY_BYTES = 1 << 28


class Mark(NamedTuple):
    """A moment in the device's work: when it was, bytes in use then, and at most since the mark before; 0 where bytes
    are not counted."""

    at: Any
    size_bytes: int
    most_bytes: int


class Link(Protocol):
    """Copies in one direction, one after the other."""

    def go(self) -> None:
        """Queue a copy, and wait for the one before it."""

    def gbps(self) -> float:
        """The rate of the copies so far, GB/s, as the median."""


class Meter(Protocol):
    """Meter of one device. ``limit_bytes`` is what the caller may have there."""

    device: torch.device
    limit_bytes: int

    def mark(self, *, counts_bytes: bool = True) -> Mark:
        """Mark the present end of the device's work; without bytes, it takes the processor less time."""

    def us(self, start: Mark, end: Mark) -> float:
        """Time between two marks."""

    def link(self, *, to_host: bool) -> Link:
        """Make copies to or from the host."""


class CudaMeter:
    """Meter by CUDA's events and the caching allocator's counts."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator has taken and does not use is free, too.
        self.limit_bytes = int(free) + torch.cuda.memory_reserved(device)

    def mark(self, *, counts_bytes: bool = True) -> Mark:
        """Mark the present end of the compute stream."""
        if not counts_bytes:
            return Mark(mark(self.device), 0, 0)
        at, most_bytes = mark(self.device), torch.cuda.max_memory_allocated(self.device)
        found = Mark(at, torch.cuda.memory_allocated(self.device), most_bytes)
        torch.cuda.reset_peak_memory_stats(self.device)
        return found

    def us(self, start: Mark, end: Mark) -> float:
        """Time between two marks; waits for the end."""
        return 1e6 * seconds(start.at, end.at)

    def link(self, *, to_host: bool) -> Link:
        """Make copies between pinned memory and the device."""
        return _CudaLink(self.device, to_host=to_host)


class _CudaLink:
    """Copies in one direction on a stream of their own; the first ones warm up."""

    def __init__(self, device: torch.device, *, to_host: bool) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        here = torch.empty(_BUSY_BYTES, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(_BUSY_BYTES, dtype=torch.uint8, device=device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # which may still read what was there before
        self._target, self._source = (here, there) if to_host else (there, here)
        self._ends: list[torch.cuda.Event] = []

    def go(self) -> None:
        with torch.cuda.stream(self._stream):
            self._target.copy_(self._source, non_blocking=True)
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
            end.record(self._stream)
        self._ends.append(end)
        if len(self._ends) > 1:
            self._ends[-2].synchronize()

    def gbps(self) -> float:
        self._stream.synchronize()
        ms = [one.elapsed_time(other) for one, other in zip(self._ends[1:], self._ends[2:], strict=False)]
        return float(_BUSY_BYTES / statistics.median(ms) / 1e6)
