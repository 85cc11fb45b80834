"""The clock of a plan: when operators run and copies move, step after step, over links that work in both directions.

An operator starts when the one before it has ended, the copies are over whose memory is freed for it, and the loads
that it reads have arrived. A store starts when it heads the queue of its tier and its operator may start; a load, when
it heads its queue and the memory of its operator is free. Nothing else waits.

Times are of the steady state: every step takes equally long, and each link has as much left to do at its end as at its
beginning. What one step hands on to the next are *marks*: when its last operator ended, when each link was done with
what was queued, and when the copies ended for which the next step waits. A mark is the latest of sums: another mark of
the step before, and time since. So steps are a linear system over (max, +), and the length of a step is the greatest
mean time of a cycle of marks [Baccelli92, chapter 3]: in no cycle can steps follow each other faster, and where none
takes longer there are marks that repeat. Both are found by raising marks (Bellman and Ford): they come to rest, or
raise each other in a cycle, whose mean is then the length to try.

Example: two operators of 10 us, the first reads and writes block A, the second does not use it. A is stored at 1, gone
at 1 and loaded at 2, which is 0 of the next step; its copy takes 4 us each way. Operator 0 runs from 0 to 10.
Operator 1 waits for the store: it runs from 14 to 24. The load takes until 28, and operator 0 of the next step waits
for it. A step takes 28 us.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadmaster.models.placement.problem import PlacementProblem

# Marks that are raised by less of a step rest: sums in another order differ by rounding.
_CLOSE = 1e-9


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
    """One step of those that repeat. Operators start at ``starts_us``, where 0 is the end of the last operator of the
    step before; copies are in the order in which they were queued."""

    step_us: float
    starts_us: tuple[float, ...]
    copies: tuple[Copy, ...]


class _Moment(NamedTuple):
    """A moment: ``us`` after the mark ``since`` of the step before. The later of two is the greater one."""

    at_us: float
    since: int
    us: float

    def plus(self, us: float) -> _Moment:
        return _Moment(self.at_us + us, self.since, self.us + us)


class _Cycle(NamedTuple):
    """A cycle of marks, by one of them, and how long a step takes at least because of it."""

    step_us: float
    mark: int


def replay(problem: PlacementProblem, stores: Sequence[TimedStore], absences: Sequence[TimedAbsence]) -> Timeline:
    """Time a step of the steady state; stores are in queue order for each ``at``, absences for each ``load_at``."""
    step = _Step(problem, stores, absences)
    longest = max(step.alone(), key=lambda cycle: cycle.step_us)
    while True:
        marks, longer = step.settled(longest.step_us, 0)
        if longer is None or longer.step_us <= longest.step_us:
            break
        longest = longer
    if longest.mark != 0:
        # Where the end of the last operator is not on the cycle, the cycle says how late it is.
        late, _ = step.settled(longest.step_us, longest.mark)
        marks = marks if late[0] == -math.inf else late
    return step.timeline(longest.step_us, marks)


class _Step:
    """One step, from the marks of the step before to its own. Mark 0 is the end of the last operator. Then follow the
    links, first all that store; the stores and the loads for which the next step waits."""

    def __init__(
        self, problem: PlacementProblem, stores: Sequence[TimedStore], absences: Sequence[TimedAbsence]
    ) -> None:
        self.times_us = [o.time_us for o in problem.operators]
        self.compute_us, self.tiers = problem.compute_us, len(problem.tiers)
        self.stores, self.absences = stores, absences
        count = len(self.times_us)
        self._queued: list[list[int]] = [[] for _ in range(count)]
        self._freed: list[list[int]] = [[] for _ in range(count)]
        self._loaded: list[list[int]] = [[] for _ in range(count)]
        self._awaited: list[list[int]] = [[] for _ in range(count)]
        late_stores, late_loads = dict[int, None](), list[int]()
        for s, store in enumerate(stores):
            self._queued[store.at].append(s)
        for a, absence in enumerate(absences):
            if absence.store is not None:
                self._freed[absence.gone_at].append(a)
                if absence.store_steps < 0:
                    late_stores[absence.store] = None
            self._loaded[absence.load_at % count].append(a)
            self._awaited[absence.before % count].append(a)
            if absence.before // count > absence.load_at // count:
                late_loads.append(a)
        first = 1 + 2 * self.tiers
        self._late_stores = {s: first + n for n, s in enumerate(late_stores)}
        self._late_loads = {a: first + len(late_stores) + n for n, a in enumerate(late_loads)}
        self.count = first + len(late_stores) + len(late_loads)

    def alone(self) -> Iterator[_Cycle]:
        """Operators, and each link, as if nothing waited."""
        yield _Cycle(self.compute_us, 0)
        for tier in range(self.tiers):
            yield _Cycle(math.fsum(s.duration_us for s in self.stores if s.tier == tier), 1 + tier)
            yield _Cycle(math.fsum(a.duration_us for a in self.absences if a.tier == tier), 1 + self.tiers + tier)

    def settled(self, step_us: float, source: int) -> tuple[list[float], _Cycle | None]:
        """The earliest marks of steps that begin every ``step_us``, with mark ``source`` at 0; or a cycle that takes
        longer, which keeps them from it."""
        marks = [-math.inf] * self.count
        marks[source] = 0.0
        causes: dict[int, _Moment] = {}
        while True:
            raised = {
                n: moment
                for n, moment in enumerate(self._ends(marks))
                if moment.at_us - step_us > marks[n] + _CLOSE * step_us
            }
            if not raised:
                return marks, None
            causes.update(raised)
            for n, moment in raised.items():
                marks[n] = moment.at_us - step_us
            cycle = _cycle(causes)
            if cycle is not None:
                return marks, cycle

    def timeline(self, step_us: float, marks: Sequence[float]) -> Timeline:
        """The step that follows these marks."""
        starts, copies = list[float](), list[Copy]()
        self._ends(marks, starts, copies)
        zero = marks[0]
        shifted = tuple(Copy(c.what, c.index, c.start_us - zero, c.end_us - zero) for c in copies)
        return Timeline(step_us, tuple(t - zero for t in starts), shifted)

    def _ends(
        self, marks: Sequence[float], starts: list[float] | None = None, copies: list[Copy] | None = None
    ) -> list[_Moment]:
        """The marks of a step by those of the step before; what it does goes into the lists."""
        before = [_Moment(at, n, 0.0) for n, at in enumerate(marks)]
        clock, links = before[0], before[: 1 + 2 * self.tiers]
        stored: dict[int, _Moment] = {}
        arrived: dict[int, _Moment] = {}
        for i, time_us in enumerate(self.times_us):
            for s in self._queued[i]:
                link = 1 + self.stores[s].tier
                start = max(clock, links[link])
                stored[s] = links[link] = start.plus(self.stores[s].duration_us)
                if copies is not None:
                    copies.append(Copy("store", s, start.at_us, links[link].at_us))
            free = clock
            for a in self._freed[i]:
                awaited, steps = self.absences[a].store, self.absences[a].store_steps
                assert awaited is not None
                free = max(free, stored[awaited] if steps == 0 else before[self._late_stores[awaited]])
            for a in self._loaded[i]:
                link = 1 + self.tiers + self.absences[a].tier
                start = max(free, links[link])
                arrived[a] = links[link] = start.plus(self.absences[a].duration_us)
                if copies is not None:
                    copies.append(Copy("load", a, start.at_us, links[link].at_us))
            for a in self._awaited[i]:
                late = self._late_loads.get(a)
                free = max(free, arrived[a] if late is None else before[late])
            if starts is not None:
                starts.append(free.at_us)
            clock = free.plus(time_us)
        handed_on = [*(stored[s] for s in self._late_stores), *(arrived[a] for a in self._late_loads)]
        return [clock, *links[1:], *handed_on]


def _cycle(causes: Mapping[int, _Moment]) -> _Cycle | None:
    """A cycle among what raised marks: each mark by the one that raised it."""
    found: dict[int, int] = {}
    for start in causes:
        way, at = list[int](), start
        while at in causes and at not in found:
            found[at] = start
            way.append(at)
            at = causes[at].since
        if at in causes and found[at] == start:
            around = way[way.index(at) :]
            return _Cycle(math.fsum(causes[n].us for n in around) / len(around), at)
    return None
