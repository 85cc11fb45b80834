"""Memory of a step by phases, and the windows in which pieces of it are taken.

Every piece that comes and goes has one window at any time, in a step that repeats, and what all of them take together
is at most the budget: windows start as short as they can be and grow where there is room.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.residency import disk_buffer_bytes, gradient_bytes, host_bytes
from loadmaster.models.training.ring import DiskRing
from loadmaster.models.training.ways import Way


@dataclass(slots=True, eq=False)
class Piece:
    """A piece of memory that comes and goes with every step. Phases count on from step to step.

    Attributes:
        what: a ``stay`` of a streamed copy, what an ``update`` on the device needs, a ``gradient`` on its way to the
            host, or a ``copy`` that is loaded in its place and takes no memory of its own.
        first, last: phases that need it, of the step at hand. An update is needed where it runs.
        earliest: phase before which it may not begin: a copy that is there for earlier uses goes first.
        lo, hi: its memory is taken in phases ``lo`` .. ``hi`` - 1.
        gradient_bytes, gradient_from: the gradient that an update ends, and the phase that begins it.
        update_from, before: an update may run after the one phase, and no more after the other has begun.
        is_queued, loaded_us, stored_us: whether its load is queued, when that and its store end.
    """

    group: int
    what: Literal["stay", "update", "gradient", "copy"]
    size_bytes: int
    first: int
    last: int
    load_us: float = 0.0
    store_us: float = 0.0
    update_us: float = 0.0
    gradient_bytes: int = 0
    gradient_from: int = 0
    update_from: int = 0
    before: int = 0
    earliest: int = 0
    lo: int = 0
    hi: int = 0
    is_queued: bool = False
    loaded_us: float = 0.0
    stored_us: float | None = None

    def __post_init__(self) -> None:
        self.lo, self.hi = self.first, self.last + 1

    def next_step(self, count: int, *, keep: bool) -> None:
        """Go on to the same piece of the next step; ``keep`` its window, or begin it where it is needed."""
        self.first, self.last, self.hi, self.lo = (
            self.first + count,
            self.last + count,
            self.hi + count,
            self.lo + count,
        )
        self.gradient_from, self.update_from = self.gradient_from + count, self.update_from + count
        self.before, self.earliest = self.before + count, self.earliest + count
        if not keep:
            self.lo = self.first
        self.is_queued, self.stored_us = False, None


class Room:
    """Bytes that are left in each phase of a step that repeats."""

    def __init__(self, left: list[int]) -> None:
        self.left, self.count = left, len(left)

    def has(self, lo: int, hi: int, size_bytes: int) -> bool:
        """Return whether phases ``lo`` .. ``hi`` - 1 have so many bytes left."""
        left, count = self.left, self.count
        return all(left[a % count] >= size_bytes for a in range(lo, hi))

    def at(self, phase: int) -> int:
        """Return the bytes left in a phase."""
        return self.left[phase % self.count]

    def take(self, lo: int, hi: int, size_bytes: int) -> None:
        """Take bytes in phases ``lo`` .. ``hi`` - 1; negative ones are given back."""
        left, count = self.left, self.count
        for a in range(lo, hi):
            left[a % count] -= size_bytes


class Ground:
    """Facts of a problem that all positions need: its calendar, and those of its groups."""

    def __init__(self, problem: TrainingProblem) -> None:
        self.problem = problem
        self.phases = phases = Phases(problem)
        self.count = len(phases)
        self.uses = phases.uses
        self.layer = [phases.layer(p) for p in range(self.count)]
        self.is_forward = [phases.is_forward(p) for p in range(self.count)]
        self.first_gradient = [phases.first_gradient(g) for g in problem.groups]
        self.last_gradient = [phases.last_gradient(g) for g in problem.groups]
        self.update_from = [phases.update_from(g) for g in problem.groups]
        self.next_use = [phases.next_use(g) for g in problem.groups]

    def lengths_us(self, points: Sequence[int]) -> list[float]:
        """Return the time of each phase, without updates."""
        chosen = [self.problem.points(layer)[number] for layer, number in enumerate(points)]
        passes = zip(self.layer, self.is_forward, strict=True)
        return [chosen[layer].forward_us if forward else chosen[layer].backward_us for layer, forward in passes]

    def left(self, points: Sequence[int], budget_bytes: int) -> list[int]:
        """Return what layers leave of a budget in each phase."""
        layers = len(points)
        chosen = [self.problem.points(layer)[number] for layer, number in enumerate(points)]
        once, held = [], self.problem.fixed_bytes
        for point in chosen:
            held += point.kept_bytes
            once.append(budget_bytes - held - point.forward_bytes)
        for point in reversed(chosen):
            once.append(budget_bytes - held - point.backward_bytes)
            held -= point.kept_bytes
        assert len(once) == 2 * layers
        return once * self.problem.micro_batches


class Windows:
    """Pieces that come and go with a step, the room that they leave, and the time of each phase with the updates that
    wait for nothing."""

    def __init__(
        self,
        ground: Ground,
        points: Sequence[int],
        ways: Sequence[Way],
        budget_bytes: int,
        delays: Sequence[int] = (),
    ) -> None:
        self.ground, self.points, self.ways = ground, tuple(points), ways
        # Phase after which each update on the device may run at the earliest.
        self.update_from = [
            min(start + delay, before - 1)
            for start, before, delay in zip(
                ground.update_from, ground.next_use, delays or itertools.repeat(0), strict=False
            )
        ]
        self.room = Room(ground.left(points, budget_bytes))
        self.lengths_us = ground.lengths_us(points)
        self.pieces: list[Piece] = []
        # Groups whose weights a step renews on the host.
        self.is_updated = [group.is_trained and way.weights != "device" for group, way in self._groups()]
        taken = 0
        for g, (group, way) in enumerate(self._groups()):
            taken += way.resident_bytes(group)
            self._add(g)
        self.room.take(0, ground.count, taken)

    def _groups(self) -> Iterator[tuple[Group, Way]]:
        return zip(self.ground.problem.groups, self.ways, strict=True)

    def _add(self, g: int) -> None:
        ground, host = self.ground, self.ground.problem.host
        group, way = ground.problem.groups[g], self.ways[g]
        begun, after, before = ground.first_gradient[g], self.update_from[g], ground.next_use[g]
        size = gradient_bytes(group, way)
        if way.update == "host":
            assert group.host_update_us is not None
            last, store_us = ground.last_gradient[g], host.store_us(group.copy_gradient_bytes)
            sent = Piece(g, "gradient", size, begun, last, store_us=store_us, update_us=group.host_update_us)
            self.room.take(sent.lo, sent.hi, size)
            self.pieces.append(sent)
            if way.weights == "copy":
                self.pieces.append(Piece(g, "copy", 0, before, before, host.load_us(group.copy_bytes)))
        elif way.has_stay:
            needed = Piece(g, "update", way.stored_bytes(group), after, after)
            needed.load_us = host.load_us(way.loaded_bytes(group))
            needed.store_us = host.store_us(way.stored_bytes(group))
            needed.update_us = group.update_us
            needed.gradient_bytes, needed.gradient_from = size, begun
            needed.update_from, needed.before = after, before
            self.room.take(begun, after + 1, size)
            self.pieces.append(needed)
        elif way.update == "device":
            after = ground.update_from[g]
            self.room.take(begun, after + 1, size)
            self.lengths_us[after] += group.update_us
        if way.weights == "streamed":
            for use in ground.uses[g]:
                self.room.take(use, use + 1, group.copy_bytes)

    def place_updates(self) -> bool:
        """Give every update on the device the first phase that has room for it, or else the one that lacks the least;
        return whether all have room."""
        room = self.room
        for piece in sorted((p for p in self.pieces if p.what == "update"), key=lambda p: (p.before, p.group)):
            at = best = piece.update_from
            while not room.has(at, at + 1, piece.size_bytes):
                if at + 1 >= piece.before or not room.has(at + 1, at + 2, piece.gradient_bytes):
                    room.take(best + 1, at + 1, -piece.gradient_bytes)
                    at = best
                    break
                at += 1
                room.take(at, at + 1, piece.gradient_bytes)
                if room.at(at) > room.at(best):
                    best = at
            piece.first = piece.last = piece.lo = at
            piece.hi = at + 1
            room.take(at, at + 1, piece.size_bytes)
        return min(room.left) >= 0

    def join_uses(self, spanned: float) -> None:
        """Make the stays of streamed copies: one for all uses that are at most ``spanned`` times the length of a load
        apart, where there is room between them."""
        ground, streamed = self.ground, [g for g, way in enumerate(self.ways) if way.weights == "streamed"]
        uses, load_us = ground.uses, [self.ground.problem.host.load_us(g.copy_bytes) for g in ground.problem.groups]
        clock = [*self.clock(), *(self.clock()[-1] + at for at in self.clock()[1:])]
        gaps = []
        for g in streamed:
            # Trained weights change between their last use and the first one of the next step.
            links = len(uses[g]) - (1 if self.is_updated[g] else 0)
            for n in range(links):
                start, end = uses[g][n] + 1, self._use(g, n + 1)
                if (between_us := clock[end] - clock[start]) <= spanned * load_us[g]:
                    gaps.append((between_us, -start, g, n, end))
        joined: dict[int, set[int]] = {g: set() for g in streamed}
        for _, start, g, n, end in sorted(gaps):
            size, last = ground.problem.groups[g].copy_bytes, len(joined[g]) == len(uses[g]) - 1
            if not last and self.room.has(-start, end, size):
                self.room.take(-start, end, size)
                joined[g].add(n)
        for g in streamed:
            size = ground.problem.groups[g].copy_bytes
            for n in range(len(uses[g])):
                if (n - 1) % len(uses[g]) not in joined[g]:
                    end = n
                    while end % len(uses[g]) in joined[g]:
                        end += 1
                    stay = Piece(g, "stay", size, uses[g][n], self._use(g, end), load_us[g])
                    stay.earliest = self._use(g, n - 1) + 1
                    self.pieces.append(stay)

    def _use(self, g: int, n: int) -> int:
        """Return the phase of a use, of this or the next step."""
        step, n = divmod(n, len(self.ground.uses[g]))
        return self.ground.uses[g][n] + step * self.ground.count

    def clock(self) -> list[float]:
        """Return the start of each phase if nothing waits, and the end of the last one."""
        return [0.0, *itertools.accumulate(self.lengths_us)]

    def schedule(self) -> Schedule:
        """Return the schedule of all windows."""
        count, ground = self.ground.count, self.ground
        plans = [GroupPlan(way.weights, way.state, way.update) for way in self.ways]
        for g, plan in enumerate(plans):
            if plan.update == "device" and not self.ways[g].has_stay:
                plans[g] = replace(plan, update_after=ground.update_from[g])
        for piece in self.pieces:
            g, plan, length = piece.group, plans[piece.group], piece.hi - piece.lo
            if piece.what == "stay":
                stay = Stay(piece.lo % count, piece.lo % count + length)
                plans[g] = replace(plan, stays=tuple(sorted((*plan.stays, stay), key=lambda s: s.load_at)))
            elif piece.what == "update":
                shift = piece.update_from - self.update_from[g]
                stay = Stay(max(piece.lo - shift, 0), piece.hi - shift)
                plans[g] = replace(plan, update_after=piece.last - shift, update_stay=stay)
            elif piece.what == "gradient":
                plans[g] = replace(plan, gradient_gone_at=ground.first_gradient[g] + length)
            else:
                plans[g] = replace(plan, copy_load_at=ground.next_use[g] - (piece.first - piece.lo))
        return Schedule(self.points, tuple(plans), self.disk_buffers())

    def ring(self) -> DiskRing | None:
        """Make the clock of states in files, whose gradients come from the last layer to the first; None: there are
        none."""
        problem, last = self.ground.problem, self.ground.last_gradient
        in_files = sorted((last[g], g) for g, way in enumerate(self.ways) if way.state == "disk")
        if problem.disk is None or not in_files:
            return None
        return DiskRing(problem.disk, [problem.groups[g].state_bytes for _, g in in_files], self.disk_buffers())

    def disk_buffers(self) -> int:
        """Return how many buffers for states in files the host has room for, up to one for each state."""
        problem = self.ground.problem
        count = sum(way.state == "disk" for way in self.ways)
        capacity, size = problem.host.capacity_bytes, disk_buffer_bytes(problem.groups, self.ways)
        if capacity is None or not size:
            return count
        return min((capacity - sum(map(host_bytes, problem.groups, self.ways))) // size, count)
