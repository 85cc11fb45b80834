"""Measurement of a training step: its peak memory and its time.

On CUDA the peak is the caching allocator's, over all timed steps. On the CPU every allocation and release of PyTorch's
allocator is counted during one step (through the profiler's memory events), on top of what is resident when it starts:
workspaces and compiled code are seen too, not only operator results.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.devices import DeviceType

Mark = float | torch.cuda.Event
"""Moment in the order of a device's work."""


@dataclass(frozen=True)
class Measurement:
    """Memory and time of a step as measured.

    Attributes:
        peak_bytes: highest allocated bytes during the step, resident ones included.
        resident_bytes: allocated before it.
        step_us: median time of the timed steps, one after another; on CUDA see :func:`queued_us`.
        requested_bytes: highest bytes asked for; blocks that the CUDA allocator hands out can be larger.
        reserved_bytes: highest bytes that the CUDA allocator took from the device: fragmentation is the rest.
        ran_out: the device ran out of memory before a step was over; bytes are what the step takes at least.
    """

    peak_bytes: int
    resident_bytes: int
    step_us: float
    requested_bytes: int
    reserved_bytes: int
    ran_out: bool = False


def measure(
    run: Callable[[], object],
    *,
    resident: Iterable[torch.Tensor] = (),
    device: torch.device | str = "cpu",
    warmup: int = 2,
    repeats: int = 5,
) -> Measurement:
    """Run a step a few times and measure it.

    Args:
        run: one whole step that leaves memory as it found it (clear the gradients first, with ``set_to_none``).
        resident: tensors that count as resident on the CPU: parameters, buffers, inputs, optimizer state. CUDA's
            allocator knows them.
        warmup: steps before anything is measured (compilation, lazily made buffers).
    """
    where = torch.device(device)
    for _ in range(warmup):
        run()
    if where.type == "cuda":
        return _on_cuda(run, where, repeats)
    storages = {storage_key(t.untyped_storage()): t.untyped_storage().nbytes() for t in resident}
    base = sum(storages.values())
    peak = cpu_peak_bytes(run)
    times = times_us(run, where, repeats)
    median_us = statistics.median(times) if times else 0.0
    return Measurement(base + peak, base, median_us, requested_bytes=base + peak, reserved_bytes=base + peak)


def times_us(run: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Times of consecutive steps, us: by :func:`queued_us` on CUDA, else by the wall clock."""
    if device.type == "cuda":
        return queued_us(run, repeats)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def cpu_peak_bytes(run: Callable[[], object]) -> int:
    """Highest bytes that PyTorch's CPU allocator hands out during the call, beyond what was allocated before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start and stop on stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results = profiler.profiler.kineto_results
    current = peak = 0
    for event in sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        if event.device_type() == DeviceType.CPU:
            current += event.nbytes()
            peak = max(peak, current)
    return peak


def _on_cuda(run: Callable[[], object], device: torch.device, repeats: int) -> Measurement:
    torch.cuda.synchronize(device)
    base = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    times = queued_us(run, repeats)
    peak = torch.cuda.max_memory_allocated(device)
    return Measurement(
        peak,
        base,
        statistics.median(times) if times else 0.0,
        requested_bytes=torch.cuda.memory_stats(device).get("requested_bytes.all.peak", peak),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
    )


def queued_us(run: Callable[[], object], repeats: int) -> list[float]:
    """Times of consecutive steps on the current CUDA device, us: the longer of the device's and the processor's.

    They are queued as in training, where the slower of the two decides: waiting for each step would count the launches
    that lead up to the next one's first kernels. Over a few steps the device alone would show less, since it still has
    kernels to run that were launched before.
    """
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]  # type: ignore[no-untyped-call]
    launched = [time.perf_counter()]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
        launched.append(time.perf_counter())
    marks[-1].synchronize()
    device_us = [start.elapsed_time(stop) * 1e3 for start, stop in pairwise(marks)]
    processor_us = [(stop - start) * 1e6 for start, stop in pairwise(launched)]
    return [max(both) for both in zip(device_us, processor_us, strict=True)]


def mark(device: torch.device) -> Mark:
    """Mark the present moment: on a CUDA device, when its current stream comes here."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def seconds(start: Mark, stop: Mark) -> float:
    """Time from one mark to a later one, seconds; waits until the device is there."""
    if isinstance(start, float) or isinstance(stop, float):
        assert isinstance(start, float) and isinstance(stop, float)
        return stop - start
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3


def event_ms(run: Callable[[], object]) -> float:
    """Time of what one call does on the current CUDA device, ms; waits for it."""
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    stop: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))
