"""The step cut into slots of time, in which links move bytes, and the moments at which memory is counted.

A moment is an operator at which more would be on the device than the budget allows if nothing ever left it. Slots go
around the step: slot J is slot 0 of the next step. Operators take their time; a stall, in a slot where an operator may
wait, adds to it.

``every`` has two slots for each operator, one before it in which it may wait and one while it runs: moves end before an
operator starts or begin after it has ended, as the checker has it. ``merged`` has one slot from each chosen operator to
the next. What happens between them is not told apart there, and moves may share the slot with operators that they must
not overlap: a program over merged slots is a relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.placement.accesses import Accesses
from loadmaster.solvers.program import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Slots:
    """Slots and moments of one step.

    Attributes:
        length_us: [J] the time of its operators.
        may_stall: [J] whether an operator may wait in it.
        first_after: [n] the first slot in which something can move once operator i has ended; J or more: of the next
            step.
        end_before: [n] one past the last slot in which something can move before operator i starts.
        moments: ascending operators at which memory is counted.
        waits: [J] the operator that waits in each slot.
    """

    length_us: FloatArray
    may_stall: BoolArray
    first_after: IntArray
    end_before: IntArray
    moments: IntArray
    waits: IntArray

    @property
    def count(self) -> int:
        """Number of slots, J."""
        return len(self.length_us)

    def after(self, position: int) -> int:
        """Slot ``first_after`` of an operator of any step, in slots that count on."""
        lap, i = divmod(position, len(self.first_after))
        return int(self.first_after[i]) + lap * self.count

    def before(self, position: int) -> int:
        """Slot ``end_before`` of an operator of any step, in slots that count on."""
        lap, i = divmod(position, len(self.end_before))
        return int(self.end_before[i]) + lap * self.count

    def moments_in(self, start: int, end: int) -> list[tuple[int, int]]:
        """The moments at positions ``start`` .. ``end`` - 1, at most one step, as (row of the moment, position)."""
        count = len(self.first_after)
        found = []
        for lap in range(start // count, (end - 1) // count + 1 if end > start else start // count):
            low = np.searchsorted(self.moments, start - lap * count)
            high = np.searchsorted(self.moments, end - lap * count)
            found += [(m, int(self.moments[m]) + lap * count) for m in range(int(low), int(high))]
        return found


def over_budget(accesses: Accesses, budget_bytes: int) -> IntArray:
    """The operators at which something must be away, ascending."""
    return np.flatnonzero(accesses.live_bytes > budget_bytes)


def every(accesses: Accesses, budget_bytes: int) -> Slots:
    """Slots of all operators, two for each: 2i in which it may wait, and 2i + 1 in which it runs."""
    n = accesses.count
    length = np.zeros(2 * n)
    length[1::2] = [o.time_us for o in accesses.problem.operators]
    i = np.arange(n, dtype=np.int64)
    return Slots(
        length,
        i.repeat(2) * 2 == np.arange(2 * n),
        2 * i + 2,
        2 * i + 1,
        over_budget(accesses, budget_bytes),
        i.repeat(2),
    )


def merged(accesses: Accesses, budget_bytes: int, most: int) -> Slots:
    """Slots that are merged, at most ``most``, each from the start of one operator to the start of another. Half of the
    slots end at moments: these are cut into runs of about equal time, and the one with the most bytes stands for each
    run. The other half cut the whole step into equal times."""
    times = np.array([o.time_us for o in accesses.problem.operators])
    moments = over_budget(accesses, budget_bytes)
    if len(moments) > most // 2:
        run = _equal_runs(times[moments], most // 2)
        order = np.lexsort((accesses.live_bytes[moments], run))
        last = np.append(run[order][1:] != run[order][:-1], True)
        moments = np.sort(moments[order[last]])
    _, first = np.unique(_equal_runs(times, most - len(moments)), return_index=True)
    cuts = np.union1d(moments, first)
    i = np.arange(accesses.count, dtype=np.int64)
    # Slot k ends at the start of cut k; what follows the last one belongs to slot 0 of the next step.
    after = np.searchsorted(cuts, i, side="right")
    return Slots(
        length_us=np.bincount(after % len(cuts), weights=times, minlength=len(cuts)).astype(np.float64),
        may_stall=np.ones(len(cuts), dtype=np.bool_),
        first_after=after,
        end_before=np.searchsorted(cuts, i, side="left") + 1,
        moments=moments,
        waits=cuts,
    )


def _equal_runs(times_us: FloatArray, most: int) -> IntArray:
    """Run that each operator belongs to, [operators], of ``most`` runs of about equal time."""
    middle = np.cumsum(times_us) - times_us / 2
    return np.minimum((middle / max(float(times_us.sum()), 1e-9) * most).astype(np.int64), most - 1)
