"""Order of copies: each direction of a link serves one at a time, in a step that repeats.

Of the copies that may start, the one that is needed first goes first (earliest deadline first). A plan holds the order
and the operators, not the times: a copy is queued as early as its operators and that order allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from loadmaster.models.placement.plan import Absence, Moves, Store
from loadmaster.planner.placement.evictions import Evictions
from loadmaster.planner.placement.links import Clock


class Job(NamedTuple):
    """Copy on a link, to be queued between the positions ``earliest`` and ``latest``. It may start at ``release_us``,
    and should be over at ``deadline_us``."""

    earliest: int
    latest: int
    release_us: float
    deadline_us: float
    length_us: float


def queued(evictions: Evictions, clock: Clock) -> Moves:
    """Schedule the moves of evictions. Blocks are away no longer than they must: memory is freed as late and taken as
    early as the budget allows, so that an operator that is earlier or later than by the clock waits for as little as
    can be."""
    w, count = evictions, evictions.count
    stores, absences = [], []
    evicted = np.flatnonzero(w.tier >= 0).tolist()
    first: dict[int, int] = {}
    for g in sorted(evicted, key=lambda g: w.first[g] - w.written[g]):
        if not w.clean[g]:
            first.setdefault(int(w.contents[g]), g)
    for h in range(w.store_us.shape[1]):
        sent = [g for g in first.values() if w.tier[g] == h]
        jobs = []
        for g in sent:
            written, gone = int(w.written[g]), int(w.first[g])
            jobs.append(Job(written + 1, gone, clock.end(written), clock.start(gone), float(w.store_us[g, h])))
        for k, at in in_order(jobs, clock):
            stores.append(Store(w.gaps[sent[k]].block, h, at % count))
        brought = [g for g in evicted if w.tier[g] == h]
        jobs = []
        for g in brought:
            last, before = int(w.last[g]), int(w.before[g])
            jobs.append(Job(last + 1, before, clock.end(last), clock.start(before), float(w.load_us[g, h])))
        for k, at in in_order(jobs, clock):
            gone = int(w.first[brought[k]])
            absences.append(Absence(w.gaps[brought[k]].block, h, gone % count, gone % count + at - gone))
    return Moves(tuple(stores), tuple(absences))


def in_order(jobs: Sequence[Job], clock: Clock) -> list[tuple[int, int]]:
    """Order jobs as a link serves them in a step, each with the position at which it is queued: no earlier than those
    before it, as far as its latest position allows."""
    starts = earliest_deadline_first(jobs, clock.step_us)
    # Around one step of the link: a copy that waited into the next step goes before what is written there.
    laps = [_lap(start, clock.step_us) for start in starts]
    order = sorted(range(len(jobs)), key=lambda k: starts[k] - laps[k] * clock.step_us)
    found, at = [], 0
    for k in order:
        shift = laps[k] * clock.count
        at = max(at, jobs[k].earliest - shift)
        found.append((k, min(at + shift, jobs[k].latest)))
    return found


def earliest_deadline_first(jobs: Sequence[Job], step_us: float) -> list[float]:
    """Start times [jobs] on a link that serves one at a time, in a step that repeats. Of the jobs that may start, the
    one with the earliest deadline goes first. Three steps are served, and the times are those of the second one: it
    finds what the step before left, and meets what the next one brings."""
    laps = [_lap(job.release_us, step_us) for job in jobs]
    arrivals = sorted(
        (job.release_us + (lap - laps[j]) * step_us, j, lap) for lap in range(3) for j, job in enumerate(jobs)
    )
    starts = [0.0] * len(jobs)
    waiting: list[tuple[float, float, int, int]] = []
    now, next_arrival = 0.0, 0
    while next_arrival < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[next_arrival][0])
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] <= now:
            released, j, lap = arrivals[next_arrival]
            heapq.heappush(waiting, (jobs[j].deadline_us + (lap - laps[j]) * step_us, released, j, lap))
            next_arrival += 1
        *_, j, lap = heapq.heappop(waiting)
        if lap == 1:
            starts[j] = now - (lap - laps[j]) * step_us
        now += jobs[j].length_us
    return starts


def _lap(us: float, step_us: float) -> int:
    """Number of the step that a moment is in; 0 if steps take no time."""
    return int(us // step_us) if step_us else 0
