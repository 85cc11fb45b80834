"""Marks in the order of a device's work, and the time between them."""

from __future__ import annotations

import time

import torch

Mark = float | torch.cuda.Event


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
