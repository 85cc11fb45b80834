"""Plans by :mod:`~loadmaster.models.memory.checkpoints`: as few segments run again as the budget asks for.

What these leave of the budget is filled (:func:`keep_more`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from loadmaster.models.memory import baselines, plain
from loadmaster.models.memory.checkpoints import at_narrow_places, formulate
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.planner.memory.eviction_search import after
from loadmaster.planner.memory.search import Search
from loadmaster.solvers.program import IntArray

# Numbers of segments that are tried, as powers of two of sqrt(V), in this order. With more of them a budget is met more
# closely; with too many, too much is kept of what crosses their ends.
POWERS = (0.0, 1.0, -1.0, 2.0)
MOST_LOOKS = 4  # for how many of them run again, in addition to the look at all of them


def checkpointed(search: Search, limit_s: float) -> None:
    """Take the best schedule by checkpoints that keeps the budget, if there is time to find one."""
    problem, out_of_time = search.problem, after(search, limit_s)
    ways = baselines.fastest_backward(problem)

    def peak_bytes(segment: IntArray, again: int) -> int:
        make = functools.partial(formulate, problem, search.budget_bytes, ways, segment, again)
        verdict = search.adopt(search.built(make), "checkpoints")
        search.say("checkpoints", f"{again} of {int(segment.max()) + 1} segments run again")
        return verdict.peak_bytes

    for power in POWERS:
        if out_of_time():
            return
        segment = at_narrow_places(problem, max(2, round(math.sqrt(len(problem.forward)) * 2.0**power)))
        few, many = 0, int(segment.max()) + 1
        most_bytes, least_bytes = plain.peak_bytes(problem), peak_bytes(segment, many)
        if least_bytes > search.budget_bytes:
            continue
        for _ in range(MOST_LOOKS):
            if many - few <= 1 or out_of_time():
                break
            # Each that runs again saves about as much as the next.
            share = (most_bytes - search.budget_bytes) / max(1, most_bytes - least_bytes)
            again = min(max(few + math.ceil(share * (many - few)), few + 1), many - 1)
            found_bytes = peak_bytes(segment, again)
            if found_bytes > search.budget_bytes:
                few, most_bytes = again, found_bytes
            else:
                many, least_bytes = again, found_bytes


# A batch is one part in so many of all results at least: it is not divided further.
BATCHES = 32

Again = tuple[int, int]
"""A stage of the backward pass, and a forward operator that it computes again."""


def keep_more(search: Search, limit_s: float) -> None:
    """Go on from the best plan, if there is one, to better ones that keep more. It sends nothing to the host.

    Whole segments that run again are a coarse choice: one less breaks the budget. Each result that is computed again
    may stay instead, and all that only led to it is not computed again either. The dearest for their bytes come first,
    in batches: twice as many after one that held the budget, half as many after one that broke it. Where 32 products of
    3 us are stacked into 6 MiB, the stack stays before a state of 6 MiB that takes 16 us.
    """
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
