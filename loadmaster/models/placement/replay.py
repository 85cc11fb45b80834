"""The clock of a plan: when operators run and copies move, step after step, over links that work in both directions.

An operator starts when the one before it has ended, the copies are over whose memory is freed for it, and the loads
that it reads have arrived. A store starts when it heads the queue of its tier and its operator may start; a load, when
it heads its queue and the memory of its operator is free. Nothing else waits. Times are of a step that repeats: steps
are replayed until they take equally long.

Example: two operators of 10 us, the first reads and writes block A, the second does not use it. A is stored at 1, gone
at 1 and loaded at 2, which is 0 of the next step; its copy takes 4 us each way. Operator 0 runs from 0 to 10.
Operator 1 waits for the store: it runs from 14 to 24. The load takes until 28, and operator 0 of the next step waits
for it. A step takes 28 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.placement.problem import PlacementProblem

# Steps until equal ones are no longer waited for: then their mean counts. Equal within rounding.
_MOST_STEPS = 12
_EQUAL = 1e-9


@dataclass(frozen=True)
class TimedStore:
    """A store of ``duration_us`` on the link of ``tier``, queued at ``at`` (0..n-1)."""

    tier: int
    at: int
    duration_us: float


@dataclass(frozen=True)
class TimedAbsence:
    """An absence with its load.

    Attributes:
        store: index of the store that its memory waits for, None where a good copy is there anyway.
        store_steps: 0 where that store is of the same step as ``gone_at``, -1 of the one before.
        before: position of the reader that waits for the load; like ``load_at`` counted from the step of ``gone_at``.
    """

    tier: int
    gone_at: int
    load_at: int
    before: int
    duration_us: float
    store: int | None
    store_steps: int = 0


@dataclass(frozen=True)
class Copy:
    """A move on a link; ``index`` is of the store, or of the absence whose load it is."""

    what: Literal["store", "load"]
    index: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """One step of those that repeat, from its first operator's end of waiting on.

    Attributes:
        step_us: how long a step takes.
        starts_us: when each operator starts; 0 is the end of the last operator of the step before.
        copies: what was moved by links since then, in the order in which it was queued.
    """

    step_us: float
    starts_us: tuple[float, ...]
    copies: tuple[Copy, ...]


def replay(problem: PlacementProblem, stores: Sequence[TimedStore], absences: Sequence[TimedAbsence]) -> Timeline:
    """Run steps until they repeat.

    Args:
        stores: in queue order for each ``at``.
        absences: in queue order for each ``load_at``.
    """
    times = [o.time_us for o in problem.operators]
    count, tiers = len(times), len(problem.tiers)
    queued: list[list[int]] = [[] for _ in range(count)]
    freed: list[list[int]] = [[] for _ in range(count)]
    loaded: list[list[int]] = [[] for _ in range(count)]
    awaited: list[list[int]] = [[] for _ in range(count)]
    for s, store in enumerate(stores):
        queued[store.at].append(s)
    for a, absence in enumerate(absences):
        if absence.store is not None:
            freed[absence.gone_at].append(a)
        loaded[absence.load_at % count].append(a)
        awaited[absence.before % count].append(a)
    store_us, load_us = [0.0] * tiers, [0.0] * tiers
    stored: list[list[float]] = [[0.0] for _ in stores]  # [0] stands for the steps before the first
    arrived: list[list[float]] = [[0.0] for _ in absences]
    clock, ends = 0.0, [0.0]
    starts, copies = [0.0] * count, list[Copy]()
    for step in range(1, _MOST_STEPS + 1):
        copies = []
        for i in range(count):
            for s in queued[i]:
                tier = stores[s].tier
                start = max(clock, store_us[tier])
                store_us[tier] = start + stores[s].duration_us
                stored[s].append(store_us[tier])
                copies.append(Copy("store", s, start, store_us[tier]))
            free = clock
            for a in freed[i]:
                absence = absences[a]
                assert absence.store is not None
                free = max(free, stored[absence.store][step + absence.store_steps])
            for a in loaded[i]:
                tier = absences[a].tier
                start = max(free, load_us[tier])
                load_us[tier] = start + absences[a].duration_us
                arrived[a].append(load_us[tier])
                copies.append(Copy("load", a, start, load_us[tier]))
            for a in awaited[i]:
                # Of a load that is queued in the step before its reader, the one before the last.
                early = absences[a].before // count - absences[a].load_at // count
                free = max(free, arrived[a][max(step - early, 0)])
            starts[i] = free
            clock = free + times[i]
        ends.append(clock)
        if step >= 3 and abs((ends[-1] - ends[-2]) - (ends[-2] - ends[-3])) <= _EQUAL * clock:
            break
    # Where steps alternate, the mean of the later half.
    half = len(ends) // 2
    step_us = ends[-1] - ends[-2] if step < _MOST_STEPS else (ends[-1] - ends[half]) / (len(ends) - 1 - half)
    zero = ends[-2]
    shifted = tuple(Copy(c.what, c.index, c.start_us - zero, c.end_us - zero) for c in copies)
    return Timeline(step_us, tuple(t - zero for t in starts), shifted)
