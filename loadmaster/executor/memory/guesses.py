"""What to plan for where a problem, as corrected so far, has no plan under the budget: guesses give way, best first.

Before any trial, what was set aside for the allocator is a guess: go without it. Then the count itself may be too high:
a compiler lets a result take over the memory of an input that dies, and makes some results not at all, where a plan
counts both. So the problem is planned with less and less resident, and the trial says whether the step keeps the
budget. After a trial, what one plan measured too much need not be what another one does: the tightest plan there may be
is tried, if it is tighter than the last one. Once: a proof that speaks of a byte more could be followed for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.executor.memory.tries import Correction, Try
from loadmaster.models.memory.plan import MemoryPlan

OVERCOUNTED = (0.04, 0.08, 0.16)
"""Of the budget: how much less than planned a step may turn out to take."""


def lower(
    correction: Correction,
    plan: MemoryPlan,
    made: Sequence[Try],
    *,
    budget_bytes: int,
    reserve_bytes: int,
    least_bytes: int,
) -> Correction | None:
    """The next correction to plan under, with less resident; None if there is nothing left to try.

    Args:
        correction, plan: the last ones: the plan is infeasible.
        made: the trials so far.
        reserve_bytes: what the user wants left free.
        least_bytes: no correction may be less than that.
    """
    if made:
        last = made[-1]
        if plan.infeasibility is None or correction.resident_bytes < last.beside_bytes:
            return None
        resident = correction.resident_bytes - plan.infeasibility.short_bytes
        return replace(correction, resident_bytes=resident) if resident > last.correction.resident_bytes else None
    guesses = [reserve_bytes, *(reserve_bytes - int(share * budget_bytes) for share in OVERCOUNTED)]
    resident = next((guess for guess in guesses if guess < correction.resident_bytes), least_bytes - 1)
    return replace(correction, resident_bytes=resident) if resident >= least_bytes else None
