"""What a solver's bound proves: it prunes what is better by less than its tolerance, and says so of the rest.

Costs are given in units in which an objective is about :data:`ABOUT`: the tolerance is then a few parts in 10 to the
10.
"""

from __future__ import annotations

ABOUT = 4096.0
# HiGHS's absolute tolerance of an objective; no other solver's is larger.
TOLERANCE = 1e-6


def unit_of(objective: float) -> float:
    """What counts as a cost of 1, where an objective is about this."""
    return objective / ABOUT if objective > 0 else 1.0


def proved(bound: float, unit: float) -> float:
    """The bound that a solver's is, of costs in this unit."""
    return (bound - TOLERANCE) * unit
