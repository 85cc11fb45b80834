"""Pinned host memory as the place for tensors: one stream to it, one from it, while the device computes.

Each cache has pools of its own, one a device. A pool's blocks are written by one stream only, so that a block may be
written again without waiting for the copy that wrote it before (:class:`HostPool` asks for that). Planned offload has
its blocks from :func:`loadmaster.executor.steps.pinned.pool_of`, which another stream writes.

A copy to the host waits for an event that the current stream recorded before the copying stream was entered. A copy
back waits until its target is the compute stream's to give. Tensors in host memory are copied at once.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.placement.cache.backends.protocol import Counters, Stored, Transfer
from loadmaster.executor.steps.host_link import HOST_SHARE, host_bytes
from loadmaster.executor.steps.pinned import SLAB_BYTES, HostPool


@dataclass(eq=False)
class _Copy:
    """A copy to the host or back, over on return if ``over_at`` is None. ``made_on`` is the stream that the source's
    memory belongs to; ``read_at`` comes after the last copy back of this block."""

    size_bytes: int
    block: Tensor
    device: torch.device
    over_at: torch.cuda.Event | None = None
    made_on: torch.cuda.Stream | None = None
    read_at: torch.cuda.Event | None = None

    def over(self) -> bool:
        return self.over_at is None or bool(self.over_at.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self.over_at is None:
            return
        here = torch.cuda.current_stream(self.device)
        here.wait_event(self.over_at)
        if self.made_on is not None and self.made_on != here:
            self.made_on.wait_event(self.over_at)  # its allocator hands out the source's memory again

    def failure(self) -> LoadmasterError | None:
        return None

    def cancel(self) -> bool:
        return False


class _Lane:
    """Pinned pool and copy streams of one device."""

    def __init__(self, device: torch.device, pool: HostPool) -> None:
        self.pool = pool
        self.to_host = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.from_host = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Meter:
    """Bytes and seconds of copies one way; those of a stream are read when they are over."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.seconds = 0.0
        self._timed: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def add(self, size_bytes: int, seconds: float) -> None:
        self.size_bytes, self.seconds = self.size_bytes + size_bytes, self.seconds + seconds

    def add_timed(self, size_bytes: int, start: torch.cuda.Event, stop: torch.cuda.Event) -> None:
        self.size_bytes += size_bytes
        self._timed.append((start, stop))
        self.read()

    def read(self) -> None:
        while self._timed and self._timed[0][1].query():  # type: ignore[no-untyped-call]
            start, stop = self._timed.popleft()
            self.seconds += start.elapsed_time(stop) / 1e3


class HostMemory:
    """Backend that keeps tensors in host memory, pinned where they come from a CUDA device, up to ``capacity_bytes``;
    None: half of the host's memory (or of the container's). A tensor that finds no room stays on the device."""

    waits_on_device = True

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = int(HOST_SHARE * host_bytes()) if capacity_bytes is None else capacity_bytes
        self._lanes: dict[torch.device, _Lane] = {}
        self._pageable = self._pool(pinned=False)
        self._out, self._in = _Meter(), _Meter()
        self._peak_bytes = 0

    def store(self, source: Tensor) -> Stored | None:
        pool = self._lane(source.device).pool if source.is_cuda else self._pageable
        pools = [self._pageable, *(lane.pool for lane in self._lanes.values())]
        if not pool.fits(source.numel(), self.capacity_bytes - sum(p.held_bytes for p in pools)):
            return None
        copy = self._to_host(source) if source.is_cuda else self._at_once(source)
        self._peak_bytes = max(self._peak_bytes, sum(p.held_bytes for p in pools))
        return copy

    def load(self, stored: Stored, target: Tensor) -> Transfer:
        assert isinstance(stored, _Copy)
        if stored.over_at is None:
            start_s = time.perf_counter()
            target.copy_(stored.block)
            self._in.add(target.numel(), time.perf_counter() - start_s)
            return _Copy(target.numel(), stored.block, target.device)
        stream, compute = self._lane(target.device).from_host, torch.cuda.current_stream(target.device)
        allocated = compute.record_event()
        start, stop = _timing_events()
        with torch.cuda.stream(stream):
            stream.wait_event(allocated)
            stream.wait_event(stored.over_at)
            start.record(stream)
            target.copy_(stored.block, non_blocking=True)
            stop.record(stream)
        self._in.add_timed(target.numel(), start, stop)
        stored.read_at = stop
        return _Copy(target.numel(), stored.block, target.device, stop)

    def free(self, stored: Stored) -> None:
        assert isinstance(stored, _Copy)
        if stored.read_at is not None and stored.device in self._lanes:
            # Whoever gets the block next writes it after it was read.
            self._lanes[stored.device].to_host.wait_event(stored.read_at)
        stored.block = stored.block[:0].clone()

    def counters(self) -> Counters:
        self._out.read()
        self._in.read()
        return Counters(
            self._out.size_bytes, self._in.size_bytes, self._out.seconds, self._in.seconds, self._peak_bytes
        )

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.to_host.synchronize()
            lane.from_host.synchronize()
        self._lanes.clear()
        self._pageable = self._pool(pinned=False)

    def _pool(self, *, pinned: bool) -> HostPool:
        """Make a pool of slabs that the capacity has room for."""
        return HostPool(pinned=pinned, slab_bytes=max(1, min(SLAB_BYTES, self.capacity_bytes)))

    def _lane(self, device: torch.device) -> _Lane:
        if device not in self._lanes:
            self._lanes[device] = _Lane(device, self._pool(pinned=True))
        return self._lanes[device]

    def _at_once(self, source: Tensor) -> _Copy:
        start_s = time.perf_counter()
        block = _taken(self._pageable, source.numel())
        block.copy_(source)
        self._out.add(source.numel(), time.perf_counter() - start_s)
        return _Copy(source.numel(), block, source.device)

    def _to_host(self, source: Tensor) -> _Copy:
        lane = self._lane(source.device)
        compute = torch.cuda.current_stream(source.device)
        made = compute.record_event()
        block = _taken(lane.pool, source.numel())
        start, stop = _timing_events()
        with torch.cuda.stream(lane.to_host):
            lane.to_host.wait_event(made)
            start.record(lane.to_host)
            block.copy_(source, non_blocking=True)
            stop.record(lane.to_host)
        self._out.add_timed(source.numel(), start, stop)
        return _Copy(source.numel(), block, source.device, stop, compute)


def _timing_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return start, stop


def _taken(pool: HostPool, size_bytes: int) -> Tensor:
    try:
        return pool.take(size_bytes)
    except InputError as error:
        remedy = (
            "Let TensorCache keep more (keep), give HostMemory(capacity_bytes), or raise the limit of locked memory"
        )
        problem, wanted = "cannot be pinned for what the backward pass needs", f"{size_bytes} bytes beside"
        raise InputError("host memory", f"{wanted} {pool.held_bytes}", problem, f"{remedy} (ulimit -l).") from error
