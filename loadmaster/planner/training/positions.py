"""Positions of moves: list scheduling of a step that repeats, by simulation.

Given how every layer runs and where every group is stored, all windows of memory start as short as they can be. Steps
are then walked through phase by phase. Loads are queued in the order in which they are needed, as early as the memory
of all phases until then allows; a store's memory is kept as long as there is room for it, and the next phase waits for
it where there is none; an update whose load comes late runs after a later phase if there is room for its gradient.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.ways import Way
from loadmaster.planner.training.windows import Ground, Piece, Windows

# Steps that are walked through. The first one begins with an empty device, the last one sees the moves of the one
# before at its end.
_STEPS = 3
# A streamed copy is kept between two uses that are so many times the length of its load apart, where there is room.
_SPANNED = 1.0
# A step that takes so many times as long as it may is not gone on from: the first ones find nothing loaded early.
_PLAINLY_LONGER = (1.3, 1.05, math.inf)


def positions(
    problem: TrainingProblem,
    points: Sequence[int],
    ways: Sequence[Way],
    budget_bytes: int,
    *,
    ground: Ground | None = None,
    most_us: float = math.inf,
    delays: Sequence[int] = (),
) -> Schedule | None:
    """Find when moves begin and end, for given points of layers and ways of groups, so that the step is short; None if
    some phase has no room for what it needs.

    Args:
        ground: of the problem, for a caller that asks often.
        most_us: steps that are plainly longer are of no interest: None then, too.
        delays: phases by which each group's update on the device is put off, where it needs bytes from the host.
    """
    found = Windows(ground or Ground(problem), points, ways, budget_bytes, delays)
    if min(found.room.left) < 0 or not found.place_updates():
        return None
    found.join_uses(_SPANNED)
    walk = _Walk(found, problem.clip_grad_norm)
    return found.schedule() if walk.walk(most_us) else None


def _by_group(piece: Piece) -> int:
    return piece.group


class _Walk:
    """Walk through some steps. Times are us; phases count on from step to step."""

    def __init__(self, found: Windows, clips: bool) -> None:
        self.windows, self.room, self.count = found, found.room, found.room.count
        self.clips = clips
        self.now = self.load_free = self.store_free = self.host_free = 0.0
        self.ring = found.ring()
        # Updates whose results are on the host, [groups], and when the last one came there.
        self.known = [0] * len(found.ground.problem.groups)
        self.ready = [0.0] * len(self.known)
        self.waiting: list[tuple[Piece, float]] = []
        self.pending: list[tuple[int, int, int, Piece]] = []
        # Pieces whose stores are queued; those that were loaded and are still to be needed; and, by their last phase,
        # those that are to be stored after it. The last one also has some that were moved on since.
        self.leaving: list[Piece] = []
        self.coming: list[Piece] = []
        self.due: defaultdict[int, list[Piece]] = defaultdict(list)
        # In the last step, (begin, number) of those that are pending.
        self.waits: list[tuple[int, int]] = []
        for number, piece in enumerate(found.pieces):
            if piece.what == "gradient":
                self.due[piece.last].append(piece)
            else:
                self.pending.append((piece.first, piece.group, number, piece))
        self.number = {id(piece): number for number, piece in enumerate(found.pieces)}
        self.pending.sort(key=lambda entry: entry[:3])
        self.keep = False

    def walk(self, most_us: float) -> bool:
        """Walk to the end; stop and return False if a step takes longer."""
        for step in range(_STEPS):
            self.keep = step == _STEPS - 1
            if self.keep:
                self.waits = [(piece.lo, number) for _, _, number, piece in self.pending]
                heapq.heapify(self.waits)
            began = self.now
            for a in range(step * self.count, (step + 1) * self.count):
                self._pass_phase(a)
            if self.now - began > _PLAINLY_LONGER[step] * most_us:
                return False
        return True

    def _pass_phase(self, a: int) -> None:
        self._queue_stores(a)
        if a % self.count == 0:
            self._update_clipped()
        start = self._free(a)
        length = self.windows.lengths_us[a % self.count]
        self._delay_unloaded(a, start + length)
        self._queue_loads(a, start, start + length)
        end = start
        for piece in self.coming:
            if piece.first == a and piece.what != "update":
                end = max(end, piece.loaded_us)
        end += length
        self._queue_loads(a, start, end)
        if self.coming:
            end = self._update_loaded(a, end)
        self.now = end
        self._shrink(a)

    def _update_loaded(self, a: int, end: float) -> float:
        """Run the updates after phase ``a``; return when they have ended."""
        updates = [piece for piece in self.coming if piece.what == "update"]
        for piece in updates:
            if piece.update_from <= a:
                self._settle_update(piece, a, end)
        for piece in sorted((p for p in updates if p.last == a), key=_by_group):
            end = max(end, piece.loaded_us) + piece.update_us
        self.coming = [piece for piece in self.coming if piece.first > a]
        return end

    def _queue_stores(self, a: int) -> None:
        """Queue the stores of what the phase before needed last."""
        due = self.due.pop(a - 1, None)
        if not due:
            return
        for piece in sorted(due, key=_by_group):
            if piece.last != a - 1 or piece.stored_us is not None:
                continue
            self.leaving.append(piece)
            if piece.store_us <= 0:
                piece.stored_us = self.now
                continue
            piece.stored_us = self.store_free = max(self.store_free, self.now) + piece.store_us
            if piece.what == "update":
                self._is_ready(piece.group, piece.stored_us)
            elif self.clips:
                self.waiting.append((piece, piece.stored_us))
            else:
                self._update_on_host(piece, piece.stored_us)

    def _update_clipped(self) -> None:
        for piece, stored_us in self.waiting:
            self._update_on_host(piece, max(stored_us, self.now))
        self.waiting.clear()

    def _update_on_host(self, piece: Piece, from_us: float) -> None:
        ring = self.ring if self.windows.ways[piece.group].state == "disk" else None
        if ring is not None:
            from_us = max(from_us, ring.ready_us)
        self.host_free = max(self.host_free, from_us) + piece.update_us
        if ring is not None:
            ring.updated(self.host_free)
        self._is_ready(piece.group, self.host_free)

    def _is_ready(self, group: int, at_us: float) -> None:
        self.known[group] += 1
        self.ready[group] = at_us

    def _free(self, a: int) -> float:
        """Free the memory of stores that have ended, and of those that must end; return when all have."""
        start = self.now
        if not self.leaving:
            return start
        leaving = sorted(self.leaving, key=lambda p: -(p.stored_us or 0.0))
        for piece in leaving:
            assert piece.stored_us is not None
            if piece.hi > a or piece.stored_us <= start:
                continue
            if a + 1 - piece.lo <= self.count and self.room.has(a, a + 1, piece.size_bytes):
                self.room.take(a, a + 1, piece.size_bytes)
                piece.hi = a + 1
            else:
                start = piece.stored_us
        for piece in leaving:
            assert piece.stored_us is not None
            if piece.stored_us <= start:
                self.room.take(a, piece.hi, -piece.size_bytes)
                piece.hi = a
                self._go_on(piece)
        return start

    def _go_on(self, piece: Piece) -> None:
        """Go on to a piece's next step."""
        self.leaving.remove(piece)
        if not self.keep:
            self.room.take(piece.lo, piece.first, -piece.size_bytes)
        piece.next_step(self.count, keep=self.keep)
        if piece.what == "gradient":
            self.due[piece.last].append(piece)
            return
        number = self.number[id(piece)]
        bisect.insort(self.pending, (piece.first, piece.group, number, piece))
        if self.keep:
            heapq.heappush(self.waits, (piece.lo, number))

    def _delay_unloaded(self, a: int, end: float) -> None:
        """Move updates on whose loads could not end in time, though they are due."""
        if not self.pending or self.pending[0][0] > a:
            return
        due = [e for e in itertools.takewhile(lambda e: e[0] <= a, self.pending) if e[3].what == "update"]
        load_free = max(self.load_free, self.now)
        for entry in due:
            piece = entry[3]
            load_free += piece.load_us
            if load_free > end and self._moved_on(piece, a):
                self.pending.remove(entry)
                bisect.insort(self.pending, (piece.first, *entry[1:]))

    def _moved_on(self, piece: Piece, a: int) -> bool:
        """Move an update that is due after phase ``a`` to the next phase, if there is room."""
        if a + 2 > piece.before or piece.hi + 1 - piece.lo > self.count:
            return False
        grown, room = piece.gradient_bytes, self.room
        same = piece.hi % self.count == (a + 1) % self.count
        if not (room.has(a + 1, a + 2, grown + (piece.size_bytes if same else 0))):
            return False
        if not (same or room.has(piece.hi, piece.hi + 1, piece.size_bytes)):
            return False
        room.take(a + 1, a + 2, grown)
        room.take(piece.hi, piece.hi + 1, piece.size_bytes)
        piece.first = piece.last = a + 1
        piece.hi += 1
        return True

    def _settle_update(self, piece: Piece, a: int, end: float) -> None:
        """Run a loaded update as early as it may, one whose load is late after a later phase if there is room."""
        if piece.last > a and piece.loaded_us <= end:
            earlier = piece.last - a
            self.room.take(a + 1, piece.last + 1, -piece.gradient_bytes)
            self.room.take(piece.hi - earlier, piece.hi, -piece.size_bytes)
            piece.first = piece.last = a
            piece.hi -= earlier
            self.due[a].append(piece)
        elif piece.last == a and piece.loaded_us > end and self._moved_on(piece, a):
            self.due[a + 1].append(piece)

    def _queue_loads(self, a: int, start: float, end: float) -> None:
        """Queue what phase ``a`` needs, and what is needed later while the link would be idle before its end."""
        at, pending, count, is_updated = 0, self.pending, self.count, self.windows.is_updated
        while at < len(pending):
            first, group, _, piece = pending[at]
            if first != a:
                if self.load_free >= end:
                    break
                late = piece.what != "update" and is_updated[group]
                late = late and (self.known[group] < first // count or self.ready[group] > end)
                if late or a < piece.earliest or piece.hi - a > count:
                    at += 1
                    continue
                if not self.room.has(a, piece.lo, piece.size_bytes):
                    break
            self._begin(piece, a)
            piece.is_queued = True
            piece.loaded_us = max(self.load_free, start, self._ready_us(piece)) + piece.load_us
            if piece.load_us > 0:
                self.load_free = piece.loaded_us
            self.coming.append(piece)
            self.due[piece.last].append(piece)
            del pending[at]

    def _ready_us(self, piece: Piece) -> float:
        return self.ready[piece.group] if piece.what != "update" and self.windows.is_updated[piece.group] else 0.0

    def _begin(self, piece: Piece, a: int) -> None:
        if piece.lo > a:
            self.room.take(a, piece.lo, piece.size_bytes)
        else:
            self.room.take(piece.lo, a, -piece.size_bytes)
        piece.lo = a

    def _shrink(self, a: int) -> None:
        """Begin the windows of loads later that could have been queued by now."""
        if self.keep:
            while self.waits and self.waits[0][0] <= a:
                _, number = heapq.heappop(self.waits)
                piece = self.windows.pieces[number]
                if piece.lo <= a < piece.first and not piece.is_queued:
                    self._begin(piece, a + 1)
                    heapq.heappush(self.waits, (a + 1, number))
        else:
            # Only updates that were moved on begin before they are needed.
            for first, *_, piece in self.pending:
                if first > a + 1:
                    break
                if piece.lo <= a:
                    self._begin(piece, a + 1)
