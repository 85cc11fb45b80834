"""Assignments in the order of their costs: how a plan is proved the best where prices alone leave a gap.

The tables of an elimination say what the rest of an assignment costs at least, and exactly. So the search goes straight
down to the best assignment, and notes at each variable what the next best state would cost; the least of all notes
leads to the next assignment.

Under a budget, costs are those with a price for memory: no plan costs less than its own cost so. When the costs of this
order pass the best plan in hand, all plans that could be better have been seen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from loadmaster.planner.partition.elimination import Elimination
from loadmaster.solvers.program import FloatArray, IntArray


@dataclass(frozen=True)
class _Note:
    """States of the variable at ``depth``, best first, given those chosen for variables before it; ``rank`` is next.
    ``before``: cost of the best assignment given what is chosen."""

    depth: int
    chosen: list[int]
    before: float
    costs: FloatArray
    states: IntArray
    rank: int

    @property
    def cost(self) -> float:
        """Cost of the best assignment with the next state."""
        if self.rank >= len(self.states):
            return math.inf
        return self.before + float(self.costs[self.states[self.rank]] - self.costs[self.states[0]])


def ranked(found: Elimination) -> Iterator[tuple[float, list[int]]]:
    """Yield (cost, assignment), the least cost first; none that is impossible."""
    if not math.isfinite(found.optimum):
        return
    notes: list[tuple[float, int, _Note]] = []
    count = 0
    chosen, cost, depth = [0] * len(found.order), found.optimum, 0
    while True:
        for at in range(depth, len(found.order)):
            v = found.order[at]
            costs = found.costs_of(v, chosen)
            states = costs.argsort(kind="stable")
            chosen[v] = int(states[0])
            note = _Note(at, chosen, cost, costs, states, 1)
            if math.isfinite(note.cost):
                count += 1
                heapq.heappush(notes, (note.cost, count, note))
        yield cost, chosen
        if not notes:
            return
        cost, _, note = heapq.heappop(notes)
        after = _Note(note.depth, note.chosen, note.before, note.costs, note.states, note.rank + 1)
        if math.isfinite(after.cost):
            count += 1
            heapq.heappush(notes, (after.cost, count, after))
        chosen, depth = list(note.chosen), note.depth + 1
        chosen[found.order[note.depth]] = int(note.states[note.rank])
