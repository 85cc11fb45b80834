"""Better use of unused bytes: results that a plan computes again are kept instead, the dearest for their bytes first.

Whole segments that run again are a coarse choice: one less breaks the budget, and what is left of it stands idle. Each
result that is computed again may stay instead, from where it was computed before, and what only led to it is not
computed again either. Results are tried in batches: twice as many after a batch that held the budget, half as many
after one that broke it.

Example: of a loop's layer, 32 products of 3 us each are stacked into 6 MiB, and 32 states of 6 MiB take 16 us each.
Where 20 MiB are left, the stack stays first, for it saves 96 us; then two of the states.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.memory.eviction_search import after
from loadmaster.planner.memory.search import Search

# A batch is one part in so many of all results at least: it is not divided further.
BATCHES = 32

Again = tuple[int, int]
"""A stage of the backward pass, and a forward operator that it computes again."""


def keep_more(search: Search, limit_s: float) -> None:
    """Go on from the best plan, if there is one, to better ones that keep more. It sends nothing to the host."""
    out_of_time = after(search, limit_s)
    waiting = [] if search.best is None else _computed_again(search.problem, search.best)
    least = max(1, len(waiting) // BATCHES)
    size = least
    while waiting and not out_of_time():
        assert search.best is not None
        before = search.best
        batch, rest = waiting[:size], waiting[size:]
        make = functools.partial(_keeping, search.problem, search.budget_bytes, before, batch)
        search.adopt(search.built(make), search.method)
        search.say("keeping more", f"{len(batch)} of {len(waiting)} results")
        if search.best is not before:
            computed = set(_again_in(search.best))
            waiting, size = [a for a in rest if a in computed], 2 * size
        elif size > least:
            size = max(least, size // 2)
        else:
            waiting = rest


def _again_in(schedule: Schedule) -> list[Again]:
    return [(t, c.forward) for t, stage in enumerate(schedule.stages) if t for c in stage.computes]


def _computed_again(problem: MemoryProblem, schedule: Schedule) -> list[Again]:
    """List results that a schedule computes again: first those with most time saved per byte and stage of staying."""
    last: dict[int, int] = {}
    worth: dict[Again, float] = {}
    for t, i in _again_in(schedule):
        cost, size = float(problem.forward_costs(i, recompute=True).min()), problem.forward[i].output_bytes
        worth[t, i] = cost / max(size, 1) / math.sqrt(t - last.get(i, 0))
        last[i] = t
    return sorted(worth, key=lambda again: -worth[again])


def _keeping(problem: MemoryProblem, budget_bytes: int, schedule: Schedule, staying: Sequence[Again]) -> Schedule:
    """Complete a plan in which some results stay instead, without offload. It may break the budget: the checker says
    so."""
    computes = [{c.forward for c in stage.computes} for stage in schedule.stages]
    for t, i in staying:
        computes[t].discard(i)
    ways = [stage.implementation for stage in schedule.stages[1:]]
    backward = tuple(way for way in ways if way is not None)
    return complete(problem, budget_bytes, Decisions(tuple(map(frozenset, computes)), backward))
