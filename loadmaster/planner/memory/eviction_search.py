"""First plans of a search by :mod:`~loadmaster.planner.memory.eviction`, and the least budget that has one."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence

from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import check
from loadmaster.models.memory.completion import complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.planner.memory.eviction import WEIGHTS, Eviction, Weights
from loadmaster.planner.memory.search import Search

# How the least budget with a plan is looked for: this much larger each time until there is one, then between, until it
# is known to this share.
STEP_UP = 1.15
FINE_ENOUGH = 0.02


def evict(search: Search, limit_s: float, first_s: float) -> None:
    """Look for plans by playing the step through and evicting what does not fit, weighed in several ways. The first way
    has ``first_s``: on a large graph and a busy machine there may be no time for another."""
    out_of_time = after(search, first_s)
    all_out_of_time = after(search, limit_s)
    eviction = search.built(lambda: Eviction(search.problem))
    for ways, weights in itertools.product(eviction.ways(), WEIGHTS):
        schedule = _evicted(search, eviction, search.budget_bytes, ways, weights, out_of_time)
        out_of_time = all_out_of_time
        if schedule is not None:
            search.adopt(schedule, "eviction")
            search.say("eviction", f"shared {weights.shared:g}, distance {weights.distance:g}")
        if out_of_time():
            break


def least_planned(search: Search, least_bytes: int, limit_s: float) -> int | None:
    """Find a budget from ``least_bytes`` on under which :func:`evict` has a plan, as small as is found in that time.
    Its plan is the nearest schedule from then on. None if not even the plain step was played in time."""
    out_of_time = after(search, limit_s)
    eviction = search.built(lambda: Eviction(search.problem))
    low, planned, budget_bytes = least_bytes, None, least_bytes
    most = max(least_bytes, plain.peak_bytes(search.problem))
    while not out_of_time() and budget_bytes <= most:
        for ways, weights in zip(reversed(eviction.ways()), WEIGHTS, strict=False):
            schedule = _evicted(search, eviction, budget_bytes, ways, weights, out_of_time)
            verdict = None if schedule is None else check(search.problem, schedule, budget_bytes)
            if schedule is not None and verdict is not None and verdict.ok:
                planned, search.nearest = budget_bytes, (schedule, verdict)
                break
        if planned != budget_bytes:
            low = budget_bytes
        if planned is None:
            budget_bytes = min(most, math.ceil(STEP_UP * budget_bytes)) if budget_bytes < most else most + 1
        elif planned - low <= FINE_ENOUGH * low:
            break
        else:
            budget_bytes = (low + planned) // 2
    return planned


def planned_budget(search: Search, least_bytes: int, limit_s: float) -> int | None:
    """Find a budget from ``least_bytes`` on that has a plan: that of :func:`least_planned` or of :func:`all_again`."""
    again = all_again(search, limit_s)
    verdict = None if again is None else check(search.problem, again, sys.maxsize)
    peaks = [max(least_bytes, verdict.peak_bytes)] if verdict is not None and verdict.ok else []
    if peaks == [least_bytes]:
        return least_bytes
    found = least_planned(search, least_bytes, limit_s)
    return min([*peaks, *([] if found is None else [found])], default=None)


def all_again(search: Search, limit_s: float) -> Schedule | None:
    """Build the step that computes everything again where it is read: long, and a plan where a budget leaves room for
    nothing else. None if time was too short to write it."""
    decisions = search.built(lambda: Eviction(search.problem).nothing_kept(after(search, limit_s)))
    return None if decisions is None else search.built(lambda: complete(search.problem, search.budget_bytes, decisions))


def after(search: Search, limit_s: float) -> Callable[[], bool]:
    """Start a clock: it says whether so many seconds have passed since, or the search is done."""
    until = time.monotonic() + limit_s
    return lambda: time.monotonic() > until or search.effort.cancelled() or search.gap_is_proved()


def _evicted(
    search: Search,
    eviction: Eviction,
    budget_bytes: int,
    ways: Sequence[int],
    weights: Weights,
    out_of_time: Callable[[], bool],
) -> Schedule | None:
    decisions = search.built(lambda: eviction.decide(budget_bytes, ways, weights, out_of_time))
    return None if decisions is None else search.built(lambda: complete(search.problem, budget_bytes, decisions))
