"""Plans by :mod:`~loadmaster.models.memory.checkpoints`: as few segments run again as the budget asks for."""

from __future__ import annotations

import functools
import math

from loadmaster.models.memory import baselines, plain
from loadmaster.models.memory.checkpoints import at_narrow_places, formulate
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
