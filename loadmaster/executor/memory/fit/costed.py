"""A captured step as planners get it: with what trials taught of its times and of what else is held in memory."""

from __future__ import annotations

from loadmaster.executor.costs.model import Corrected
from loadmaster.executor.memory.capture import CapturedStep
from loadmaster.executor.memory.fit.trials import Correction
from loadmaster.models.memory.checker import Check, check
from loadmaster.models.memory.corrected import least_resident_bytes, with_resident
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem

_UNLIMITED_BYTES = 1 << 62


class Costed:
    """The problems of one captured step.

    Attributes:
        learned: of the latest trials: the factors, and the bytes held on top of the captured ones, reserves left out.
    """

    def __init__(self, captured: CapturedStep, learned: Correction) -> None:
        self.captured = captured
        self.learned = learned
        self._problems: dict[tuple[float, float], MemoryProblem] = {}

    @property
    def plain(self) -> MemoryProblem:
        """The problem as captured, without corrections."""
        return self._costed(1.0, 1.0)

    @property
    def least_bytes(self) -> int:
        """The least that a correction of resident bytes can be."""
        return -least_resident_bytes(self.plain)

    def problem(self, correction: Correction) -> MemoryProblem:
        """The captured problem, with corrected times and resident bytes."""
        return with_resident(self._costed(correction.products, correction.moves), correction.resident_bytes)

    def shares_us(self, schedule: Schedule) -> list[float]:
        """Time of library kernels and of all others under a schedule, at captured costs: waits and cuts left out."""
        sorts = [Corrected(self.captured.costs, products=1.0, moves=0.0), Corrected(self.captured.costs, 0.0, 1.0)]
        replays = [check(self.captured.problem(c), schedule, _UNLIMITED_BYTES) for c in sorts]
        return [_busy_us(r) for r in replays]

    def _costed(self, products: float, moves: float) -> MemoryProblem:
        """The problem with corrected times: made once, for it takes a second on large models."""
        if (products, moves) not in self._problems:
            corrected = Corrected(self.captured.costs, products, moves)
            self._problems[products, moves] = self.captured.problem(corrected)
        return self._problems[products, moves]


def _busy_us(replayed: Check) -> float:
    return replayed.forward_us + replayed.recompute_us + replayed.backward_us
