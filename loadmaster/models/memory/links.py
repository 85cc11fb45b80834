"""The host link in a schedule: the one statement of how results travel, and its replay next to the compute.

The checker replays this rule, the planning program (:mod:`loadmaster.models.memory.banded_offload`) and the boundary
relaxation bound it, the executor carries it out:

- A result is *done with* when the last forward operator that reads it has run (``MemoryProblem.last_readers``: the
  operator itself where none does; an encoded result that is left out counts as run when its turn has passed).
- Results are sent in the order of ``Schedule.offload``, one copy at a time, each to its end. A copy is queued when
  its result is done with and every one before it in that order has been queued.
- A result stays on the device, counted in full, until the forward operator in ``Schedule.gone_before`` starts, and
  that operator waits until the copy is over. Memory therefore follows from the schedule alone, only time from the
  link. The backward pass starts when everything has left: no copy to the host overlaps one from it.
- A fetch is queued when the stage ``issued_at`` starts, those for earlier stages first, those for one stage in the
  order listed; one copy at a time. Its bytes count from then on, and the stage it is for waits until it has arrived.
- A result sent cuts a compiled graph. That is paid for once, when the result is queued: the next operator starts
  ``HostLink.cutting_us`` later, while the link carries on. All tensors of one operator travel as one result. Results
  that wait or arrive together share their cuts; each is charged for its own.

Copies are queued before those ahead of them are over, so the link rests only while nothing waits for it. Several at
once would share its bandwidth and move no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.verdict import Copy


class Start(NamedTuple):
    """Earliest start of an operator, ``start_us``, later by ``cut_us`` because of results sent just before. ``stuck``:
    results that it would wait for and that are not even queued."""

    cut_us: float
    start_us: float
    stuck: list[int]


class HostTraffic:
    """The copies of one schedule in time, in the order in which they run. Without a link, or with ids that do not
    exist, nothing travels. ``leaving_bytes``: results done with in the forward pass that have not gone yet.
    ``incoming_bytes``: results fetched that have not arrived yet."""

    def __init__(self, problem: MemoryProblem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.link = problem.host_link
        self.copies: list[Copy] = []
        self.leaving_bytes = self.incoming_bytes = 0
        self._free_us = 0.0
        count = len(problem.forward)
        departures = schedule.departures(count) if self.link is not None else {}
        self._gone_before = {i: gone for i, gone in departures.items() if i < count}
        self._unqueued = deque(self._gone_before)
        self._on_device = dict.fromkeys(self._gone_before, False)
        self._sent_us: dict[int, float] = {}
        self._arrivals_us: dict[tuple[int, int], float] = {}

    def before(self, j: int, clock_us: float) -> Start:
        """Forward operator j is about to start (the number of forward operators: the backward pass is)."""
        last_readers, sizes = self.problem.last_readers, self.problem.output_bytes
        for i in self._gone_before:
            if last_readers[i] < j and not self._on_device[i]:
                self._on_device[i] = True
                self.leaving_bytes += int(sizes[i])
        cut_us = 0.0
        while self._unqueued and last_readers[self._unqueued[0]] < j:
            cut_us += self._send(self._unqueued.popleft(), clock_us)
        start_us = clock_us + cut_us
        stuck = []
        for i in [i for i, gone in self._gone_before.items() if gone <= j]:
            del self._gone_before[i]
            self.leaving_bytes -= int(sizes[i]) if self._on_device[i] else 0
            if i in self._sent_us:
                start_us = max(start_us, self._sent_us[i])
            else:
                stuck.append(i)
        return Start(cut_us, start_us, stuck)

    def issue(self, t: int, clock_us: float) -> None:
        """Stage t starts: queue the fetches that it issues."""
        if self.link is None:
            return
        for later, stage in enumerate(self.schedule.stages):
            for fetch in stage.fetches:
                if fetch.issued_at == t and fetch.forward < len(self.problem.forward):
                    size = int(self.problem.output_bytes[fetch.forward])
                    end_us = self._queue(fetch.forward, "from_host", self.link.from_host_us(size), clock_us)
                    self._arrivals_us[later, fetch.forward] = end_us
                    self.incoming_bytes += size

    def arrive(self, t: int, i: int) -> float:
        """Take result i of stage t off the way and return when it has arrived; 0 if it never set out."""
        if (t, i) not in self._arrivals_us:
            return 0.0
        self.incoming_bytes -= int(self.problem.output_bytes[i])
        return self._arrivals_us.pop((t, i))

    def _send(self, i: int, clock_us: float) -> float:
        """Queue the copy; returns what sending the result costs on top."""
        assert self.link is not None
        size = int(self.problem.output_bytes[i])
        self._sent_us[i] = self._queue(i, "to_host", self.link.to_host_us(size), clock_us)
        return self.link.cutting_us(size)

    def _queue(self, i: int, direction: Literal["to_host", "from_host"], time_us: float, clock_us: float) -> float:
        start_us = max(self._free_us, clock_us)
        self._free_us = start_us + time_us
        self.copies.append(Copy(i, direction, start_us, time_us, int(self.problem.output_bytes[i])))
        return self._free_us


def sending_order(problem: MemoryProblem, offload: Sequence[int]) -> tuple[int, ...]:
    """The results in the order in which the forward pass is done with them."""
    return tuple(sorted(offload, key=lambda i: (problem.last_readers[i], i)))


def latest_departures(problem: MemoryProblem, offload: Sequence[int], room_bytes: Sequence[int]) -> tuple[int, ...]:
    """Latest ``gone_before`` of each result sent that the memory allows: no operator waits without need. ``offload``:
    in :func:`sending_order`. ``room_bytes`` [V]: what the forward pass leaves to results on their way, before and while
    each operator runs."""
    gone_before = dict.fromkeys(offload, len(problem.forward))
    waiting = deque(offload)
    leaving: deque[int] = deque()
    for j, room in enumerate(room_bytes):
        while waiting and problem.last_readers[waiting[0]] < j:
            leaving.append(waiting.popleft())
        while leaving and sum(int(problem.output_bytes[i]) for i in leaving) > room:
            gone_before[leaving.popleft()] = j
    return tuple(gone_before[i] for i in offload)
