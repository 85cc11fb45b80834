"""The clock of a schedule: when phases run, copies move and updates run, step after step until steps repeat.

Phases follow each other. Position p is reached once phase p-1, with the device updates after it, has ended, and every
store has ended whose memory is to be free at p. Then the loads of p are queued; stores of p were queued when phase p-1
ended. Phase p waits for the loads that it is the first to need, and each update for the load of its stay.

Each direction of the link moves one thing at a time, in a fixed order (:mod:`loadmaster.models.training.moves`). What
is at the head of its queue and not ready is waited for: weights that are still to be updated. Updates on the host run
one at a time, in the order in which gradients arrive; with ``clip_grad_norm`` none starts before the last phase has
ended. One whose state is in files waits until that has been read (:mod:`loadmaster.models.training.ring`).

Step 0 finds everything on the host ready, and all that a step before it would have left over is done. As the order is
fixed, every time is the latest of sums of earlier ones, and steps repeat sooner or later, one by one or in turns
[Baccelli92, chapter 3]. Where they do not within 64 steps, the longest of the last 16 counts, and no less than what the
device, the link, the host or the disk is busy for: only a queue of its own can fall behind for so long, since all else
meets the phases in every step.

Example: two phases of 10 us each; the update runs on the host for 15 us; gradient and copy take 4 us on the link. The
gradient is there at 24, the weights are new at 39, and their copy is back at 43: so long is a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from loadmaster.models.training.moves import Move, Moves, UpdateRun, What
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.ring import Exchange

_MOST_STEPS = 64
_LAST_STEPS = 16
_LONGEST_CYCLE = 8
# Times of steps that repeat differ by rounding.
_CLOSE = 1e-9


@dataclass(frozen=True)
class Copy:
    """A move on the link; ``group`` is a number."""

    direction: Literal["to host", "from host"]
    group: int
    what: What
    size_bytes: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class DiskMove:
    """A write of a group's state to files, or a read of it into a buffer."""

    direction: Literal["to disk", "from disk"]
    group: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Update:
    """A run of the optimizer for the group of that number."""

    group: int
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Timeline:
    """One step of those that repeat; times count from the end of the step before.

    Attributes:
        starts_us, ends_us: [P] of the phases alone; updates on the device follow them.
        copies, host_updates: each once, in the order of their starts. One that the step before left over starts in this
            step, or later; one that is queued at the end of this step may end after it.
        disk_moves: that follow the host updates of this step, in the order of their starts.
        step_us: mean of the cycle that repeats.
        stall_us: its part in which the device runs neither a phase nor an update.
        steps: how many were replayed; this is the last one.
    """

    starts_us: tuple[float, ...]
    ends_us: tuple[float, ...]
    copies: tuple[Copy, ...]
    host_updates: tuple[Update, ...]
    device_updates: tuple[Update, ...]
    step_us: float
    stall_us: float
    steps: int
    disk_moves: tuple[DiskMove, ...] = ()


class StuckError(Exception):
    """A step that never ends: what it waits for waits for it. The message says who waits for what."""


def replay(problem: TrainingProblem, schedule: Schedule, phases: Phases | None = None) -> Timeline:
    """Time a schedule whose fields go together, or raise :class:`StuckError`; ``phases`` saves a caller with many
    schedules the calendar."""
    return _Clock(Moves(problem, schedule, Phases(problem) if phases is None else phases)).timeline()


class _Window(NamedTuple):
    """Times of what a step started, in an order that does not depend on times. Stores, loads and host updates are given
    by their numbers; ``ready`` is when phases and the updates after them have ended."""

    start: float
    phases: list[float]
    ready: list[float]
    updates: list[float]
    stores: list[int]
    store_starts: list[float]
    loads: list[int]
    load_starts: list[float]
    hosts: list[int]
    host_starts: list[float]
    exchanges: list[Exchange]
    exchange_starts: list[float]

    def repeats(self, other: _Window, tolerance: float) -> bool:
        """Return whether all times, relative to the start, are those of another step."""
        later = self.start - other.start
        low, high = later - tolerance, later + tolerance
        for mine, its in zip(self._times(), other._times(), strict=True):
            if len(mine) != len(its):
                return False
            for a, b in zip(mine, its, strict=True):
                if not low <= a - b <= high:
                    return False
        return True

    def _times(self) -> tuple[list[float], ...]:
        moves = (self.store_starts, self.load_starts, self.exchange_starts)
        return self.ready, self.phases, *moves, self.host_starts, self.updates


class _Clock:
    """Times of steps, one after the other."""

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        # By the number of a store, then of a host update: when it last ended, and in how many steps.
        sources = len(moves.stores) + len(moves.host_groups)
        self.ends, self.done = [0.0] * sources, [0] * sources
        # By the number of a load; None: queued, and not yet under way.
        self.arrivals: list[float | None] = [0.0] * len(moves.loads)
        # (number, queued at, time, source, in how many steps that is to have ended)
        self.queue: deque[tuple[int, float, float, int, int]] = deque()
        self.clipped: list[tuple[int, float]] = []
        self.now = self.to_host = self.from_host = self.host = 0.0
        self.ring, self.is_in_files = moves.ring(), [g in moves.in_files for g in moves.host_groups]
        self.window = _new_window(0.0)

    def timeline(self) -> Timeline:
        windows: list[_Window] = []
        for n in range(_MOST_STEPS):
            self._step(n)
            windows.append(self.window)
            # Step 0 has less to do: nothing is left over from before.
            for cycle in range(1, min(_LONGEST_CYCLE, n - 1) + 1):
                before = windows[-1 - cycle]
                step_us = (self.now - before.ready[-1]) / cycle
                if self.window.repeats(before, _CLOSE * step_us):
                    return self._timeline(step_us, n + 1)
        longest = max(w.ready[-1] - w.start for w in windows[-_LAST_STEPS:])
        return self._timeline(max(longest, self.moves.busy_us), _MOST_STEPS)

    def _step(self, n: int) -> None:
        """Run step n."""
        ends, done, arrivals, queue = self.ends, self.done, self.arrivals, self.queue
        now, to_host = self.now, self.to_host
        self.window = window = _new_window(now)
        rows = self.moves.rows if n else self.moves.first
        last = len(rows) - 1
        for p, (stores, freed_by, loads, waits, phase_us, updates) in enumerate(rows):
            for number, us, update, clipped in stores:
                start = now if now > to_host else to_host
                window.stores.append(number)
                window.store_starts.append(start)
                ends[number] = to_host = start + us
                done[number] += 1
                if clipped and update >= 0:
                    self.clipped.append((update, to_host))
                elif update >= 0:
                    self._update(update, to_host)
            start = now
            for number in freed_by:
                if ends[number] > start:
                    start = ends[number]
            for number, us, source, steps in loads:
                arrivals[number] = None
                queue.append((number, start, us, source, n + steps))
            if queue:
                self._pump()
            for number in waits:
                arrived = arrivals[number]
                if arrived is None:
                    raise StuckError(self._stuck(self.moves.phases.words(p), number))
                if arrived > start:
                    start = arrived
            window.phases.append(start)
            now = start + phase_us
            if p == last and self.clipped:
                for update, arrived in self.clipped:
                    self._update(update, arrived if arrived > now else now)
                self.clipped.clear()
                self._pump()
            if updates:
                now = self._device_updates(updates, now)
            window.ready.append(now)
        self.now, self.to_host = now, to_host

    def _device_updates(self, updates: Sequence[UpdateRun], now: float) -> float:
        for group, us, load in updates:
            if load >= 0:
                arrived = self.arrivals[load]
                if arrived is None:
                    name = self.moves.problem.groups[group].name
                    raise StuckError(self._stuck(f"the update of {name} on the device", load))
                now = max(now, arrived)
            self.window.updates.append(now)
            now += us
        return now

    def _update(self, update: int, ready: float) -> None:
        """Run an update on the host."""
        start = max(ready, self.host)
        ring = self.ring if self.is_in_files[update] else None
        if ring is not None:
            start = max(start, ring.ready_us)
        self.window.hosts.append(update)
        self.window.host_starts.append(start)
        self.host = start + self.moves.host_us[update]
        if ring is not None:
            exchange = ring.updated(self.host)
            self.window.exchanges.append(exchange)
            self.window.exchange_starts.append(exchange.start_us)
        source = len(self.moves.stores) + update
        self.ends[source] = self.host
        self.done[source] += 1

    def _pump(self) -> None:
        """Time the loads at the head of the queue, up to one whose source has not ended yet."""
        queue, ends, done, now = self.queue, self.ends, self.done, self.from_host
        while queue:
            number, queued, us, source, steps = queue[0]
            start = queued if queued > now else now
            if source >= 0:
                if done[source] < steps:
                    break
                if ends[source] > start:
                    start = ends[source]
            queue.popleft()
            self.window.loads.append(number)
            self.window.load_starts.append(start)
            self.arrivals[number] = now = start + us
        self.from_host = now

    def _stuck(self, who: str, number: int) -> str:
        """Say who waits for the load of that number, and for what the queue waits."""
        moves, groups = self.moves, self.moves.problem.groups
        head, source = self.queue[0][0], self.queue[0][3]
        waits_for = moves.loads[number]
        said = f"{who} waits for the {waits_for.what} of {groups[waits_for.group].name}"
        if head != number:
            said += f", queued behind the {moves.loads[head].what} of {groups[moves.loads[head].group].name}"
        update = "store after the" if source < len(moves.stores) else "host"
        return f"{said}, which waits for its {update} update: that comes later, and the step never ends"

    def _timeline(self, step_us: float, steps: int) -> Timeline:
        window, moves, zero = self.window, self.moves, self.window.start
        phase_us = [row.us for row in moves.rows]
        runs = [run for row in moves.rows for run in row.updates]
        copies = [
            *_copies("to host", moves.stores, window.stores, window.store_starts, zero),
            *_copies("from host", moves.loads, window.loads, window.load_starts, zero),
        ]
        return Timeline(
            starts_us=tuple(start - zero for start in window.phases),
            ends_us=tuple(start + us - zero for start, us in zip(window.phases, phase_us, strict=True)),
            copies=tuple(sorted(copies, key=lambda copy: copy.start_us)),
            host_updates=tuple(
                Update(moves.host_groups[n], start - zero, start + moves.host_us[n] - zero)
                for n, start in zip(window.hosts, window.host_starts, strict=True)
            ),
            device_updates=tuple(
                Update(run.group, start - zero, start + run.us - zero)
                for run, start in zip(runs, window.updates, strict=True)
            ),
            step_us=step_us,
            stall_us=max(step_us - moves.device_us, 0.0),
            steps=steps,
            disk_moves=tuple(self._disk_moves(window)),
        )

    def _disk_moves(self, window: _Window) -> Iterator[DiskMove]:
        groups, zero = self.moves.in_files, window.start
        for exchange in window.exchanges:
            start, between, end = exchange.start_us - zero, exchange.between_us - zero, exchange.end_us - zero
            yield DiskMove("to disk", groups[exchange.written], start, between)
            yield DiskMove("from disk", groups[exchange.read], between, end)


def _new_window(start: float) -> _Window:
    return _Window(start, [], [], [], [], [], [], [], [], [], [], [])


def _copies(
    direction: Literal["to host", "from host"], moves: list[Move], numbers: list[int], starts: list[float], zero: float
) -> list[Copy]:
    found = []
    for number, start in zip(numbers, starts, strict=True):
        group, what, size, us = moves[number]
        found.append(Copy(direction, group, what, size, start - zero, start + us - zero))
    return found
