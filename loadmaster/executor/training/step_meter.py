"""Meter of the user's own steps: the peak of CUDA's allocator, and times by events that nobody waits for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch

from loadmaster.executor.steps.measure import mark, seconds

_KEPT_STEPS = 64  # whose times are remembered


@dataclass(frozen=True)
class Peak:
    """Most bytes in one step: handed out by the allocator, and taken by it from the device."""

    allocated_bytes: int
    reserved_bytes: int


class StepMeter(Protocol):
    """Meter of one step after the other."""

    def begin(self, *, watches_memory: bool) -> None:
        """Begin a step; where memory is watched, the device's peak statistics start again."""

    def mark(self) -> None:
        """Note how many bytes are in use as a phase begins, where memory is watched."""

    def end(self) -> Peak:
        """End it, everything of it launched."""

    def levels(self) -> list[tuple[float, int]]:
        """Times and bytes in use of the latest watched step that is over on the device, from 0 us on; the last at its
        end. Empty without one."""

    def times_us(self) -> list[float]:
        """Times of the latest steps that are over on the device."""


class CudaStepMeter:
    """Meter of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._began: torch.cuda.Event | None = None
        self._open: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._times_us: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._watches_memory = False
        self._marks: list[tuple[torch.cuda.Event, int]] = []
        self._watched: list[tuple[torch.cuda.Event, int]] = []

    def begin(self, *, watches_memory: bool) -> None:
        if watches_memory:
            torch.cuda.reset_peak_memory_stats(self.device)
        self._watches_memory, self._marks = watches_memory, []
        self._began = self._event()

    def mark(self) -> None:
        if self._watches_memory:
            self._marks.append((self._event(), torch.cuda.memory_allocated(self.device)))

    def end(self) -> Peak:
        if self._began is not None:
            self._open.append((self._began, self._event()))
            self._began = None
        self.mark()
        if self._marks:
            self._watched, self._watches_memory = self._marks, False
        self._take()
        device = self.device
        return Peak(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))

    def times_us(self) -> list[float]:
        self._take()
        return list(self._times_us)

    def levels(self) -> list[tuple[float, int]]:
        if not self._watched or not self._watched[-1][0].query():  # type: ignore[no-untyped-call]
            return []
        first = self._watched[0][0]
        return [(1e6 * seconds(first, event), size) for event, size in self._watched]

    def _event(self) -> torch.cuda.Event:
        event = mark(self.device)
        assert isinstance(event, torch.cuda.Event)
        return event

    def _take(self) -> None:
        while self._open and self._open[0][1].query():  # type: ignore[no-untyped-call, unused-ignore]
            began, ended = self._open.popleft()
            self._times_us.append(1e6 * seconds(began, ended))
