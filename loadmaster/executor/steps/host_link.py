"""Host link of a problem: measured where the device is present, else from the catalogue of hardware."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from loadmaster.errors import InputError
from loadmaster.executor.steps.measure import event_ms
from loadmaster.models.hardware import CUTS, HostLink, hardware_reported_as
from loadmaster.models.hardware import hardware as entry_of

PROBE_BYTES = 1 << 28
PROBES = 9
HOST_SHARE = 0.5  # of the host's memory: the rest is for the data, and for what else runs there
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY = Path("/proc/meminfo")


def host_link(device: torch.device, hardware: str | None = None, *, compiled: bool = False) -> HostLink:
    """The link between a device and its host: measured on a CUDA device, or that of an entry of the catalogue
    (``hardware``), whose host's memory is taken as unlimited.

    Only a step that Inductor compiles (``compiled``) has a graph that is cut by what is sent. Raises InputError if
    there is no such entry, or nothing to measure: the device is the host.
    """
    if hardware is not None:
        return entry_of(hardware).host_link(compiled=compiled)
    if device.type != "cuda":
        remedy = "Name a device of the catalogue (hardware), or give a HostLink of your own."
        raise InputError("host_link", str(device), "has no link to the host that could be measured", remedy)
    return measured_link(device, compiled=compiled)


def measured_link(device: torch.device, *, compiled: bool) -> HostLink:
    """Measure pinned copies of 256 MiB, one direction at a time, median of nine; room for half the host's memory.

    What a cut costs depends on what would have been one kernel, so no small graph stands for a model's. It is put
    together: launches, at what they cost on such a device, and bytes, at what a pass over device memory reaches here.
    Raises InputError if so much host memory cannot be pinned.
    """
    try:
        host = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        remedy = "Let the process lock more memory (ulimit -l)."
        raise InputError("host_link", PROBE_BYTES, f"cannot be measured: {error}", remedy) from error
    there = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=device)
    link = HostLink(
        to_host_gbps=_gbps(lambda: host.copy_(there, non_blocking=True)),
        from_host_gbps=_gbps(lambda: there.copy_(host, non_blocking=True)),
        capacity_bytes=int(HOST_SHARE * host_bytes()),
    )
    if not compiled:
        return link
    words = there.view(torch.int32)
    entry = hardware_reported_as(torch.cuda.get_device_name(device)) or entry_of("a100-40gb")
    # Each byte is read and written.
    return replace(link, cut_us=CUTS * entry.launch_us, cut_gbps=2 * _gbps(lambda: words.add_(1)))


def host_bytes() -> int:
    """Bytes of the host's memory, or of the part that the container may use."""
    total, limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _container_bytes()
    return total if limit is None else min(total, limit)


def available_host_bytes() -> int:
    """Bytes of the host's memory that can be taken without swapping, as Linux estimates it, or those that the container
    may still take; else :func:`host_bytes`."""
    left = host_bytes()
    if _MEMORY.is_file():
        left = min(left, 1024 * _listed(_MEMORY, "MemAvailable:", left // 1024))
    limit, now = _container_bytes(), _CGROUP / "memory.current"
    if limit is None or not now.is_file():
        return left
    cached = _listed(_CGROUP / "memory.stat", "inactive_file", 0)  # goes when the memory is asked for
    return max(0, min(left, limit - int(now.read_text()) + cached))


def _container_bytes() -> int | None:
    """Bytes that the container may use; None: as many as there are."""
    limit = _CGROUP / "memory.max"
    said = limit.read_text().strip() if limit.is_file() else "max"
    return int(said) if said.isdigit() else None


def _listed(path: Path, name: str, otherwise: int) -> int:
    """The number behind a name in a file with one a line."""
    lines = (line.split() for line in path.read_text().splitlines()) if path.is_file() else ()
    return next((int(words[1]) for words in lines if words[:1] == [name]), otherwise)


def cores() -> int:
    """Number of the host's processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gbps(copy: Callable[[], object]) -> float:
    copy()
    return PROBE_BYTES / statistics.median(event_ms(copy) for _ in range(PROBES)) / 1e6
