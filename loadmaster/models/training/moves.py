"""A schedule's moves and updates in the order in which a step starts them, without times.

Each direction of the link moves one thing at a time, in the order of (position, the phase that needs it first, group);
of one group, the copy that a phase needs before the state that the update after it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.training.residency import (
    gradient_bytes,
    update_loads_bytes,
    update_stores_bytes,
    update_words,
)
from loadmaster.models.training.ring import DiskRing

What = Literal["copy", "gradient", "state", "weights and state"]


class Move(NamedTuple):
    """A move on the link: of which group, what, how many bytes, and for how long."""

    group: int
    what: What
    size_bytes: int
    us: float


class Store(NamedTuple):
    """A store as its phase queues it; ``update`` is the number of the host update that takes its gradient, or -1, and
    ``clipped`` whether that waits for the last phase of the step."""

    number: int
    us: float
    update: int
    clipped: bool


class Load(NamedTuple):
    """A load as its phase queues it. It waits for ``source``: a store, or, counted after all stores, a host update; -1
    is none. In step n, that has ended for ``n + steps`` steps before it is ready."""

    number: int
    us: float
    source: int
    steps: int


class UpdateRun(NamedTuple):
    """An update on the device, after a phase; ``load`` brings what it needs, -1: nothing."""

    group: int
    us: float
    load: int


class Row(NamedTuple):
    """All that happens around one phase: stores and loads in the order of their queues, the stores that free memory for
    it, the loads that it waits for, its time, and the updates on the device after it."""

    stores: Sequence[Store]
    freed_by: Sequence[int]
    loads: Sequence[Load]
    waits: Sequence[int]
    us: float
    updates: Sequence[UpdateRun]


class _Queued(NamedTuple):
    """An entry at its position in a step, with its place in the order of that position. ``back``: it is of the step
    before."""

    order: tuple[int, int]
    back: int
    number: int


class Moves:
    """The moves and updates of a schedule whose fields go together.

    Attributes:
        stores, loads: [numbers] what moves.
        host_groups, host_us: [numbers of host updates] whose update it is, and its time.
        in_files: groups whose state is in files, in the order of their updates.
        first, rows: [P] of step 0, to which none before it has left anything; and of every later step.
        device_us: time of all phases and updates on the device.
    """

    def __init__(self, problem: TrainingProblem, schedule: Schedule, phases: Phases) -> None:
        self.problem, self.phases, self._count = problem, phases, len(phases)
        self.stores: list[Move] = []
        self.loads: list[Move] = []
        self.host_groups = [g for g, plan in enumerate(schedule.groups) if plan.update == "host"]
        self.host_us = [problem.groups[g].host_update_us or 0.0 for g in self.host_groups]
        self._update_of_store: dict[int, int] = {}
        self._source_of_load: dict[int, tuple[int, int]] = {}
        stored: list[list[_Queued]] = [[] for _ in range(self._count)]
        loaded: list[list[_Queued]] = [[] for _ in range(self._count)]
        updates: list[list[tuple[int, UpdateRun]]] = [[] for _ in range(self._count)]
        self._stored, self._loaded, self._updates = stored, loaded, updates
        self._freed: list[list[int]] = [[] for _ in range(self._count)]
        self._waits: list[list[int]] = [[] for _ in range(self._count)]
        for g, plan in enumerate(schedule.groups):
            source = self._add_update(g, plan)
            self._add_copies(g, plan, source)
        self.disk_buffers, self.in_files = schedule.disk_buffers, self._updated_from_files(schedule)
        # Only now it is known how many stores come before the host updates.
        phase_us = _phase_us(problem, schedule)
        self.rows = [self._row(p, us, 1) for p, us in enumerate(phase_us)]
        self.first = [self._row(p, row.us, 0) if self._is_late(p) else row for p, row in enumerate(self.rows)]
        self.device_us = sum(phase_us) + sum(run.us for runs in updates for _, run in runs)

    @property
    def busy_us(self) -> float:
        """Time of a step for whoever is busy longest: the device, a direction of the link, or the host."""
        each = (sum(move.us for move in moves) for moves in (self.stores, self.loads))
        return max(self.device_us, sum(self.host_us), self._disk_us(), *each)

    def ring(self) -> DiskRing | None:
        """Make the clock of states in files; None where there are none."""
        if self.problem.disk is None or not self.in_files:
            return None
        return DiskRing(self.problem.disk, self._sizes_in_files(), self.disk_buffers)

    def _sizes_in_files(self) -> list[int]:
        return [self.problem.groups[g].state_bytes for g in self.in_files]

    def _disk_us(self) -> float:
        disk = self.problem.disk
        return 0.0 if disk is None else sum(disk.store_us(n) + disk.load_us(n) for n in self._sizes_in_files())

    def _updated_from_files(self, schedule: Schedule) -> tuple[int, ...]:
        """List the groups with state in files as their gradients are sent: those of the step before come last."""
        sent = [
            (back, p, order, self.stores[number].group)
            for p, entries in enumerate(self._stored)
            for order, back, number in entries
            if number in self._update_of_store
        ]
        return tuple(g for *_, g in sorted(sent) if schedule.groups[g].state == "disk")

    def _add_update(self, g: int, plan: GroupPlan) -> int | None:
        """Add the update of a group with its moves. Return what its weights wait for: a store, or a host update as a
        negative number; None where they do not change."""
        group, source = self.problem.groups[g], None
        if plan.update_after is not None:
            load, at = -1, plan.update_after
            if plan.update_stay is not None:
                stay, what = plan.update_stay, update_words(plan)
                source = self._store(g, what, update_stores_bytes(group, plan), at + 1, stay.gone_at)
                load = self._load(g, what, update_loads_bytes(group, plan), stay.load_at, at, (source, 0))
            run = UpdateRun(g, group.update_us, load)
            self._updates[at % self._count].append((at // self._count, run))
        elif plan.gradient_gone_at is not None:
            at = self.phases.last_gradient(group) + 1
            number = self._store(g, "gradient", gradient_bytes(group, plan), at, plan.gradient_gone_at)
            self._update_of_store[number] = len(self._update_of_store)
            source = -len(self._update_of_store)
        return source

    def _add_copies(self, g: int, plan: GroupPlan, source: int | None) -> None:
        """Add the loads of a group's copy, and make phases wait for them."""
        copy_bytes, uses, count = self.problem.groups[g].copy_bytes, self.phases.uses[g], self._count
        needs = []
        if plan.copy_load_at is not None:
            needs.append((plan.copy_load_at, count + uses[0]))
        for stay in plan.stays:
            needs.append((stay.load_at, self.phases.use_from(g, stay.load_at)))
        for at, needed in needs:
            # Weights for the next step are those that this step updates.
            waits_for = None if source is None else (source, needed // count)
            self._waits[needed % count].append(self._load(g, "copy", copy_bytes, at, needed, waits_for))

    def _store(self, g: int, what: What, size: int, at: int, needed: int) -> int:
        number, back = len(self.stores), at // self._count
        self.stores.append(Move(g, what, size, self.problem.host.store_us(size)))
        self._stored[at % self._count].append(_Queued((needed - back * self._count, g), back, number))
        self._freed[needed % self._count].append(number)
        return number

    def _load(self, g: int, what: What, size: int, at: int, needed: int, source: tuple[int, int] | None) -> int:
        number, back = len(self.loads), at // self._count
        self.loads.append(Move(g, what, size, self.problem.host.load_us(size)))
        if source is not None:
            self._source_of_load[number] = source
        order = (needed - back * self._count, 2 * g + (what != "copy"))
        self._loaded[at % self._count].append(_Queued(order, back, number))
        return number

    def _row(self, p: int, us: float, most_back: int) -> Row:
        stores = [
            Store(number, self.stores[number].us, self._update_of_store.get(number, -1), self._is_clipped(back))
            for _, back, number in sorted(self._stored[p])
            if back <= most_back
        ]
        loads = [self._queued(number, back) for _, back, number in sorted(self._loaded[p]) if back <= most_back]
        updates = [run for back, run in self._updates[p] if back <= most_back]
        return Row(stores, self._freed[p], loads, self._waits[p], us, updates)

    def _queued(self, number: int, back: int) -> Load:
        source, steps = self._source_of_load.get(number, (None, 0))
        if source is None:
            source = -1
        elif source < 0:
            source = len(self.stores) - source - 1
        return Load(number, self.loads[number].us, source, steps - back)

    def _is_late(self, p: int) -> bool:
        """Return whether a step leaves something to the next one's phase p."""
        late = [entry.back for entry in (*self._stored[p], *self._loaded[p])]
        return any(late) or any(back for back, _ in self._updates[p])

    def _is_clipped(self, back: int) -> bool:
        """A gradient of the step before finds all others of its step complete."""
        return self.problem.clip_grad_norm and not back


def _phase_us(problem: TrainingProblem, schedule: Schedule) -> list[float]:
    points = [problem.points(n)[number] for n, number in enumerate(schedule.points)]
    once = [point.forward_us for point in points] + [point.backward_us for point in reversed(points)]
    return once * problem.micro_batches
