"""Proof by a solver's bound: solvers prune what is better by less than their tolerance, and count the rest as proved.

Costs are given in units in which an objective is about :data:`ABOUT`: the tolerance is then a few parts in 10 to the
10.
"""

from __future__ import annotations

ABOUT = 4096.0
# HiGHS's absolute tolerance of an objective; no other solver's is larger.
TOLERANCE = 1e-6


def unit_of(objective: float) -> float:
    """Cost that counts as 1, for an objective of about the given size."""
    return objective / ABOUT if objective > 0 else 1.0


def proved(bound: float, unit: float) -> float:
    """Turn a solver's bound in a unit into a proved bound, less its tolerance."""
    return (bound - TOLERANCE) * unit
