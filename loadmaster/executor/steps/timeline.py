"""Measured timeline of one step: what ran when, and the allocated bytes.

On CUDA the kernels are what ran. The host launches them ahead of the device, and it is the host that allocates: bytes
that it hands out before a launch count from the moment that kernel starts, which is when the device could first need
them. On the CPU the operators are what ran, and both clocks are the same.

:func:`record_snapshot` records a step for https://pytorch.org/memory_viz; ``loadmaster show --snapshot`` writes the
planned memory in the same form.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loadmaster.errors import InputError
from loadmaster.executor.torch_private.devices import DeviceType, memory_snapshot, record_memory_history

# Kernels that Inductor writes (its matrix products apart), PyTorch's own, Loadmaster's, and copies inside the device.
_MOVES = re.compile(r"triton_(?!tem|mm|bmm|convolution)|_(?!Z)|.*(at::native|Memcpy DtoD|Memset|batch_?norm|bn_[fb]w)")
_PRODUCTS = re.compile(r"conv|gemm|gemv|fmha|flash|attention|[dw]grad|fprop", re.I)
# Calls of the CUDA runtime and driver. Operators number themselves too, but apart from these.
_LAUNCH = re.compile(r"cu(da)?[A-Z]")
# From this CUDA on the profiler's hooks (CUPTI) come off cleanly, in programs with CUDA graphs too.
_CLEAN_TEARDOWN = (12, 6)
_HOST_COPY = re.compile(r"Memcpy (HtoD|DtoH)")
MAX_ENTRIES = 100_000  # events; a step has a few thousand


@dataclass(frozen=True)
class Span:
    """Kernel or operator that ran on a stream of the device, or on a thread of the host."""

    name: str
    track: int
    start_us: float
    duration_us: float

    @property
    def is_host_copy(self) -> bool:
        """True for a copy to or from the host, which runs in parallel with the compute."""
        return _HOST_COPY.match(self.name) is not None

    @property
    def is_product(self) -> bool:
        """True for a library's kernel: a convolution, a matrix product, attention."""
        if _MOVES.match(self.name) is None:
            return True
        return "at::native" in self.name and _PRODUCTS.search(self.name) is not None


@dataclass(frozen=True)
class Timeline:
    """Spans of one measured step, in the order in which they started, from 0 on, and allocated bytes (``memory``), each
    from a moment (us) on, resident ones included."""

    device: str
    spans: tuple[Span, ...]
    memory: tuple[tuple[float, int], ...]

    @property
    def products_us(self) -> float:
        """Time of library kernels, us, summed."""
        return sum(s.duration_us for s in self.spans if s.is_product and not s.is_host_copy)

    @property
    def moves_us(self) -> float:
        """Time of all other kernels, us, summed, without copies to and from the host."""
        return sum(s.duration_us for s in self.spans if not s.is_product and not s.is_host_copy)

    @property
    def levels(self) -> list[tuple[float, int]]:
        """Allocated bytes over time, extended to the end of the last span."""
        end_us = max((s.start_us + s.duration_us for s in self.spans), default=0.0)
        last_us, size_bytes = self.memory[-1]
        return [*self.memory, (max(end_us, last_us), size_bytes)]

    @property
    def peak_bytes(self) -> int:
        """Highest allocated bytes over the step."""
        return max((size for _, size in self.memory), default=0)


def record(step: Callable[[], object], device: torch.device, resident_bytes: int = 0) -> Timeline:
    """Record a step's timeline by PyTorch's profiler. Only the CUDA allocator knows what is resident before it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it announces every start and stop on stderr
    on_cuda = device.type == "cuda"
    if on_cuda and tuple(map(int, (torch.version.cuda or "0").split("."))) >= _CLEAN_TEARDOWN:
        # Left on, they make every later launch of the process longer, and with it steps of short kernels.
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    if on_cuda:
        torch.cuda.synchronize(device)
        resident_bytes = torch.cuda.memory_allocated(device)
    with profile(activities=activities, profile_memory=True) as profiler:
        step()
        if on_cuda:
            torch.cuda.synchronize(device)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda e: (e.start_ns(), -e.duration_ns()))
    where = DeviceType.CUDA if on_cuda else DeviceType.CPU
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type() == where]
    ran = _kernels(events) if on_cuda else _operators(events)
    if on_cuda:
        changes = _as_the_device_sees(changes, events, ran)
    first = min([at for at, _ in changes] + [e.start_ns() for e in ran], default=0)
    spans = (_span(e, first, on_cuda=on_cuda) for e in ran)
    return Timeline(device.type, tuple(spans), tuple(_levels(changes, first, resident_bytes)))


def _kernels(events: Sequence[Any]) -> list[Any]:
    on_device = [e for e in events if e.device_type() == DeviceType.CUDA and e.duration_ns() > 0]
    return [e for e in on_device if not e.is_user_annotation()]


def _operators(events: Sequence[Any]) -> list[Any]:
    """Select the outermost operators (``namespace::name``) of every thread."""
    ends: dict[int, int] = {}
    found = []
    for e in events:
        thread = e.start_thread_id()
        named = "::" in e.name() and not e.name().startswith(("autograd::", "torch::"))
        if named and e.device_type() == DeviceType.CPU and e.start_ns() >= ends.get(thread, 0):
            ends[thread] = e.start_ns() + e.duration_ns()
            found.append(e)
    return found


def _as_the_device_sees(
    changes: Sequence[tuple[int, int]], events: Sequence[Any], kernels: Sequence[Any]
) -> list[tuple[int, int]]:
    """Move each change from the host's clock to the start of the kernel that the host launches next."""
    starts = {k.correlation_id(): k.start_ns() for k in kernels}
    calls = [e for e in events if e.device_type() == DeviceType.CPU and _LAUNCH.match(e.name())]
    launches = [(e.start_ns(), e.correlation_id()) for e in calls if e.correlation_id() in starts]
    if not launches:
        return list(changes)
    hosts = [at for at, _ in launches]
    end = max((k.start_ns() + k.duration_ns() for k in kernels), default=0)
    moved, latest = [], 0
    for at, size in changes:
        following = bisect_left(hosts, at)
        start = starts[launches[following][1]] if following < len(launches) else end
        latest = max(latest, start)
        moved.append((latest, size))
    return moved


def _span(event: Any, first_ns: int, *, on_cuda: bool) -> Span:
    track = event.device_resource_id() if on_cuda else event.start_thread_id()
    return Span(event.name(), int(track), (event.start_ns() - first_ns) / 1e3, event.duration_ns() / 1e3)


def _levels(changes: Iterable[tuple[int, int]], first_ns: int, resident_bytes: int) -> Iterable[tuple[float, int]]:
    current = resident_bytes
    yield 0.0, current
    for at, size in changes:
        current += size
        yield (at - first_ns) / 1e3, current


def record_snapshot(step: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Record every allocation and release of one step, with the Python lines they come from, as the result of
    ``torch.cuda.memory._snapshot()``; pickle it. Raises InputError if the device is not a CUDA device."""
    expect_history(device)
    torch.cuda.synchronize(device)
    record_memory_history("all", context="alloc", stacks="python", max_entries=MAX_ENTRIES)
    try:
        step()
        torch.cuda.synchronize(device)
        snapshot: dict[str, Any] = memory_snapshot(device)
    finally:
        record_memory_history(None)
    return snapshot


def expect_history(device: torch.device) -> None:
    """Refuse devices whose allocator keeps no history: raise InputError if it is not a CUDA device."""
    if device.type != "cuda":
        remedy = "Record on CUDA, or look at the planned memory: loadmaster show --snapshot."
        raise InputError("device", str(device), "keeps no history of its memory", remedy)
