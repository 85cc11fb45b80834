"""Times of operators in a step of known stalls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.placement.timed import Timed
from loadmaster.solvers.program import FloatArray


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
