"""Times of queued steps: the slower of the device and the processor decides."""

from __future__ import annotations

import time

import pytest
import torch

from loadmaster.executor.steps.measure import queued_us


def events_apart(ms: float):
    """CUDA events between which the device works so long."""

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            pass

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, _other: Event) -> float:
            return ms

    return Event


def test_a_step_takes_as_long_as_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", events_apart(ms=1e6))
    assert queued_us(lambda: None, 3) == [1e9] * 3


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_step_takes_as_long_as_its_launches(monkeypatch, repeats):
    """However few they are: the device still runs what was launched before."""
    monkeypatch.setattr(torch.cuda, "Event", events_apart(ms=0.0))
    times = queued_us(lambda: time.sleep(0.002), repeats)
    assert len(times) == repeats and min(times) >= 2000
