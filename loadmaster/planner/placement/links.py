"""Idle times of links in a step of known times: they say how many copies there is time for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.planner.placement.clock import Clock
from loadmaster.solvers.program import FloatArray, IntArray

Copies = Sequence[Sequence[tuple[float, float]]]


class Links:
    """Idle time of both directions of every link, between operators.

    Args:
        stores, loads: for each tier, (start, end) of its copies, in any step.
    """

    def __init__(self, clock: Clock, stores: Copies, loads: Copies) -> None:
        self._clock = clock
        self._stores = np.array([self._idle(copies) for copies in stores])
        self._loads = np.array([self._idle(copies) for copies in loads])

    def idle_store_us(self, tier: int, start: IntArray | int, end: IntArray | int) -> FloatArray:
        """Idle time for stores from the start of operator ``start`` to that of ``end``, positions of any step."""
        return self._until(self._stores[tier], end) - self._until(self._stores[tier], start)

    def idle_load_us(self, tier: int, start: IntArray | int, end: IntArray | int) -> FloatArray:
        """Idle time for loads from the start of operator ``start`` to that of ``end``, positions of any step."""
        return self._until(self._loads[tier], end) - self._until(self._loads[tier], start)

    def _until(self, idle: FloatArray, position: IntArray | int) -> FloatArray:
        count = self._clock.count
        found: FloatArray = idle[np.mod(position, count)] + np.floor_divide(position, count) * idle[count]
        return found

    def _idle(self, copies: Sequence[tuple[float, float]]) -> FloatArray:
        """Idle time [n + 1] from the start of the step to the start of each operator, and of the whole step."""
        step_us = self._clock.step_us
        edges = np.array([*self._clock.starts_us, step_us])
        busy = np.zeros(len(edges))
        for start, end in copies:
            lap = start // step_us * step_us
            busy += np.clip(edges, start - lap, end - lap) - (start - lap)
            if end - lap > step_us:
                busy += np.clip(edges + step_us, None, end - lap) - step_us
        # The start of the first operator may be late in the step, with copies before it.
        found: FloatArray = np.maximum.accumulate(np.maximum(edges - busy, 0.0))
        return found
