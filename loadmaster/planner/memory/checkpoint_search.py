"""Plans by :mod:`~loadmaster.models.memory.checkpoints`: as few segments run again as the budget asks for."""

from __future__ import annotations

import functools
import math

from loadmaster.models.memory import baselines
from loadmaster.models.memory.checker import Check, check
from loadmaster.models.memory.checkpoints import at_narrow_places, run_again
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.planner.memory.eviction_search import after
from loadmaster.planner.memory.search import Search
from loadmaster.solvers.program import IntArray

# Numbers of segments that are tried, as powers of two of sqrt(V), in this order.
POWERS = (0.0, -1.0, 1.0)


def checkpointed(search: Search, limit_s: float) -> Schedule | None:
    """The best of them that keeps the budget; None if none does, or time was up before."""
    problem, out_of_time = search.problem, after(search, limit_s)
    best: tuple[Check, Schedule] | None = None
    for power in POWERS:
        segment = at_narrow_places(problem, max(2, round(math.sqrt(len(problem.forward)) * 2.0**power)))
        least, most = 1, int(segment.max()) + 1
        while least <= most and not out_of_time():
            again = (least + most) // 2
            schedule = search.built(functools.partial(_schedule, search, segment, again))
            verdict = check(problem, schedule, search.budget_bytes)
            if verdict.ok and (best is None or verdict.objective < best[0].objective):
                best = verdict, schedule
            least, most = (least, again - 1) if verdict.ok else (again + 1, most)
    return None if best is None else best[1]


def _schedule(search: Search, segment: IntArray, again: int) -> Schedule:
    ways = baselines.fastest_backward(search.problem)
    runs, _ = run_again(search.problem, ways, segment, again)
    return complete(search.problem, search.budget_bytes, Decisions(tuple(map(frozenset, runs)), tuple(ways)))
