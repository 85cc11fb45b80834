"""Next correction to plan under, where a problem, as corrected so far, has no plan under the budget.

Before any trial, what was set aside for the allocator is an estimate: go without it. After a trial, what one plan
measured too much need not be what another one does: the tightest plan there may be is tried, if it is tighter than the
last one. Once: a proof that speaks of a byte more could be followed for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.executor.memory.fit.trials import Correction, Trial
from loadmaster.models.memory.plan import MemoryPlan


def fallback(
    correction: Correction,
    plan: MemoryPlan,
    made: Sequence[Trial],
    reserve_bytes: int,
) -> Correction | None:
    """The next correction to plan under, with less resident; None if there is nothing left to try.

    Args:
        correction, plan: the last ones: the plan is infeasible.
        made: the trials so far.
        reserve_bytes: what the user wants left free.
    """
    if made:
        last = made[-1]
        if plan.infeasibility is None or correction.resident_bytes < last.beside_bytes:
            return None
        resident = correction.resident_bytes - plan.infeasibility.short_bytes
        return replace(correction, resident_bytes=resident) if resident > last.correction.resident_bytes else None
    return replace(correction, resident_bytes=reserve_bytes) if reserve_bytes < correction.resident_bytes else None
