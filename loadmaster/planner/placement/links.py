"""Times of operators in a step of known stalls, and the idle times of links: how many copies there is time for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.placement.timed import Timed
from loadmaster.solvers.program import FloatArray, IntArray


class Clock:
    """Times at which operators start and end in a step of known stalls, for positions of any step."""

    def __init__(self, starts_us: Sequence[float], times_us: Sequence[float], step_us: float) -> None:
        self.starts_us, self.step_us = list(starts_us), step_us
        self.ends_us = [s + t for s, t in zip(starts_us, times_us, strict=True)]
        self.count = len(self.starts_us)

    def start(self, position: int) -> float:
        """Time in us at which the operator at a position starts."""
        lap, i = divmod(position, self.count)
        return self.starts_us[i] + lap * self.step_us

    def end(self, position: int) -> float:
        """Time in us at which the operator at a position ends."""
        lap, i = divmod(position, self.count)
        return self.ends_us[i] + lap * self.step_us


def of_fluid(timed: Timed, values: FloatArray, times_us: Sequence[float]) -> Clock:
    """Clock of a relaxation: operators wait in each slot as long as it says."""
    c = timed.columns
    wait = np.zeros(len(times_us))
    np.add.at(wait, c.slots.waits, values[c.stall])
    ends = np.cumsum(wait + np.array(times_us))
    return Clock((ends - np.array(times_us)).tolist(), times_us, float(ends[-1]))


Copies = Sequence[Sequence[tuple[float, float]]]


class Links:
    """Idle time of both directions of every link, between operators. ``stores``, ``loads``: for each tier, (start, end)
    of its copies, in any step."""

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
