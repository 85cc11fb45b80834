"""Time of a fit: seconds by phase, and what each phase took the last time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping

CAPTURING, COSTING, PLANNING = "capturing", "adding up costs", "planning"
PLANS, KNOB = "plans", "torch.compile's own partition"
CHECKING = "comparing with plain PyTorch"

SAID_FROM_S = 0.05


def compiling(what: str) -> str:
    """The phase in which the steps of a side are compiled: each trial's first steps."""
    return f"compiling {what}"


def timing(what: str) -> str:
    """The phase in which the steps of a side are measured."""
    return f"timing {what}"


class Phases:
    """Sums of the seconds of phases: ``seconds`` of each so far, ``beside_s`` of planning that went on during another
    phase, and ``before``, what each took the last time, each time."""

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.beside_s = 0.0
        self.before = dict(before or {})
        self._times: Counter[str] = Counter()
        self._began = time.perf_counter()
        self._stood_at: float | None = None

    def begin(self) -> None:
        """Begin a fit: count from zero, and remember what each phase took."""
        self.before = self.each_s
        self.seconds.clear()
        self.beside_s = 0.0
        self._times.clear()
        self._began = time.perf_counter()

    def stand_still(self) -> None:
        """Leave the time until :meth:`go_on` uncounted: the user trains."""
        self._stood_at = time.perf_counter()

    def go_on(self) -> None:
        """Count again after :meth:`stand_still`."""
        if self._stood_at is not None:
            self._began += time.perf_counter() - self._stood_at
            self._stood_at = None

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the seconds inside the context as those of a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
            self._times[phase] += 1

    @property
    def each_s(self) -> dict[str, float]:
        """Seconds that each phase took each time: in this fit, else the last time."""
        return self.before | {phase: s / self._times[phase] for phase, s in self.seconds.items()}

    def last_time(self, phase: str) -> str:
        """Words on how long a phase took the last time; empty where nothing is known."""
        known = self.each_s.get(phase)
        return "" if known is None else f" ({known:.0f} s the last time)"

    def words(self) -> str:
        """One sentence on how long each phase took, of all since the beginning."""
        if not self.seconds:
            return ""
        said = {phase: f"{phase} took {seconds:.1f} s" for phase, seconds in self.seconds.items()}
        if self.beside_s >= SAID_FROM_S:
            said[PLANNING] += f" ({self.beside_s:.1f} s of it during a compilation)"
        return f"Of {time.perf_counter() - self._began:.1f} s, {', '.join(said.values())}."
