"""Large neighbourhood search: part of the backward pass is planned again, all else recomputes as in the best plan.

Source: [Shaw98]. A restriction of a graph of hundreds of operators is too much for a solver in seconds; a third of its
slots is not, and what the forward pass keeps stays free throughout.
"""

from __future__ import annotations

import math

import numpy as np

from loadmaster.models.memory.banded_points import Banded
from loadmaster.models.memory.plan import Schedule
from loadmaster.planner.memory.search import Search
from loadmaster.planner.memory.slots import Slots
from loadmaster.solvers.program import Program

# Slots that are planned again, as shares of a restriction's: thirds, then across their borders.
NEIGHBOURHOODS = ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0), (1 / 6, 1 / 2), (1 / 2, 5 / 6))
# Of a restriction's time, what a neighbourhood takes.
NEIGHBOURHOOD_SHARE = 0.3
# Another round is worth its time if this one has saved so much of the step.
WORTH_A_ROUND = 5e-4


def improve(search: Search, slots: Slots, limit_s: float, *, seed: int = 0, offload: bool = True) -> bool:
    """Look for better plans in one round of neighbourhoods over a restriction; there is a plan. Each takes a share of
    ``limit_s``. Returns whether another round is worth its time."""
    before = search.objective
    for begin, end in NEIGHBOURHOODS:
        if search.done():
            break
        restriction = search.restriction(slots, search.budget_bytes, offload=offload)
        if restriction is None:
            break
        count = len(restriction.groups)
        first, last = math.floor(begin * count), math.ceil(end * count)
        assert search.best is not None
        program = outside_fixed(restriction, search.best, first, last)
        phase = f"plans, {last - first} of {count} slots"
        search.solve_restriction(restriction, program, phase, NEIGHBOURHOOD_SHARE * limit_s, seed)
    assert before is not None and search.objective is not None
    return search.objective < (1 - WORTH_A_ROUND) * before


def outside_fixed(restriction: Banded, schedule: Schedule, first: int, last: int) -> Program:
    """Fix a restriction's program: slots outside first to last (not included) recompute and fetch as in a schedule."""
    columns, values = restriction.start(schedule)
    outside = np.isin(columns, restriction.brought_outside(first, last))
    return restriction.program.fixed(columns[outside], values[outside])
