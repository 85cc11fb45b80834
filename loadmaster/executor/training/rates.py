"""Rates of updates and moves, measured with the user's own optimizer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from loadmaster.executor.training.meter import Meter
from loadmaster.executor.training.updates import GroupOptimizer, HostThread, host_threads

SAMPLE_ELEMENTS = 1 << 25
_SAMPLES = 6
LEAST_HOST_US = 5e5  # of updates on the host, whose memory is not equally fast all the time
_FILLS = 30  # about a millisecond of a device's time: longer than the launch of an update


@dataclass(frozen=True)
class Rates:
    """Rates of updates and moves. Those of the host share its memory, in a step a part of the time: each is measured
    alone, and with the others all the time. (Of 3 B at 12 to 40 GiB, updates have been 0.65 of the shared time, and 1.2
    of the mean; copies as the mean.)

    Attributes:
        device_us, host_us: time of an update for each element.
        device_bytes: bytes that an update on the device makes for a while, for each element: fused kernels make none.
        to_host_gbps, from_host_gbps: of pinned copies, both ways at the same time.
    """

    device_us: float
    host_us: float
    device_bytes: float
    to_host_gbps: float
    from_host_gbps: float


def measured_rates(optimizer: torch.optim.Optimizer, meter: Meter, copies: torch.dtype | None) -> Rates:
    """Measure the user's optimizer on a sample on the device, and on the host; there without copies at first, then
    while they go both ways. ``copies`` is the format of gradients there; None: that of the weights."""
    there, device_us, device_bytes = _sample(optimizer, meter.device), [], 0
    for _ in range(_SAMPLES):
        for master in there.masters:
            master.grad = torch.ones_like(master)
            for _ in range(_FILLS):  # the device is busy while the update is launched, as it is in a step
                master.grad.fill_(1.0)
        start = meter.mark()
        there.step(there.settings())
        end = meter.mark()
        device_us.append(meter.us(start, end))
        device_bytes = end.most_bytes - start.size_bytes  # of the last one: the first makes the state
    host = HostThread(host_threads())
    update = partial(_host_update_us, host, optimizer, copies or torch.float32)
    try:
        alone_us = host.submit(update).result()
        alone_gbps = _link_gbps(meter, lambda: True)
        updates = host.submit(update)
        shared_gbps = _link_gbps(meter, updates.done)
        shared_us = updates.result()
    finally:
        host.shut_down()
    return Rates(
        statistics.median(device_us[1:]) / SAMPLE_ELEMENTS,
        statistics.fmean([statistics.fmean(each[1:]) for each in (alone_us, shared_us, shared_us)]) / SAMPLE_ELEMENTS,
        device_bytes / SAMPLE_ELEMENTS,
        *(statistics.harmonic_mean(rates) for rates in zip(alone_gbps, shared_gbps, strict=True)),
    )


def _link_gbps(meter: Meter, is_over: Callable[[], bool]) -> list[float]:
    """Copy both ways until that is over; rates to the host, and from it."""
    links, copied = [meter.link(to_host=way) for way in (True, False)], 0
    while copied < _SAMPLES or not is_over():
        for link in links:
            link.go()
        copied += 1
    return [link.gbps() for link in links]


def _sample(optimizer: torch.optim.Optimizer, device: torch.device) -> GroupOptimizer:
    sample = nn.Parameter(torch.zeros(SAMPLE_ELEMENTS >> 12, 1 << 12, device=device))
    return GroupOptimizer(optimizer, 0, [sample], sample.device)


@torch.no_grad()
def _host_update_us(host: HostThread, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> list[float]:
    """Times of updates on the host with the casts of gradient and copy. In the host's thread."""
    here = _sample(optimizer, torch.device("cpu"))
    gradient = torch.ones(here.masters[0].shape, dtype=dtype)
    copied = torch.empty_like(gradient)
    times: list[float] = []
    while len(times) < _SAMPLES or sum(times) < LEAST_HOST_US:
        began = time.perf_counter()
        host.update(here, [gradient], here.settings(), None)
        copied.copy_(here.masters[0])
        times.append(1e6 * (time.perf_counter() - began))
    return times
