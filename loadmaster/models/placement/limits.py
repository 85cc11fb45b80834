"""The budget of a placement problem: what is enough, what is needed at least, and budgets in between."""

from __future__ import annotations

import numpy as np

from loadmaster.models.placement.accesses import Accesses
from loadmaster.models.placement.problem import PlacementProblem


def peak_bytes(problem: PlacementProblem) -> int:
    """Bytes that the step takes if nothing ever leaves the device."""
    return int(Accesses(problem).live_bytes.max())


def least_bytes(problem: PlacementProblem) -> tuple[int, int]:
    """The largest that one operator needs, with all else elsewhere: no plan takes less. And that operator."""
    needed = Accesses(problem).needed_bytes
    at = int(needed.argmax())
    return int(needed[at]), at


def least_us(problem: PlacementProblem, budget_bytes: int) -> float:
    """Lower bound on the time of a step: its operators, or the links for what does not fit and is brought back."""
    away_bytes = max(0, peak_bytes(problem) - budget_bytes)
    gbps = sum(tier.from_gbps for tier in problem.tiers)
    return max(problem.compute_us, away_bytes / (gbps * 1e3) if gbps else 0.0)


def spread(problem: PlacementProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from the least to the peak, ascending."""
    low, high = least_bytes(problem)[0], peak_bytes(problem)
    return sorted({int(b) for b in np.linspace(low, high, count)})
