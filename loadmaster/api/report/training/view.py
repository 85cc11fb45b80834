"""A training plan joined with its problem, as pictures need it: the replayed step, and what each layer and group does.

Times are microseconds from the start of the step, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from loadmaster.api.report.over_time import Busy, Role, Row, within_step
from loadmaster.api.report.words import expect_held
from loadmaster.models.training.checker import TrainingCheck, check_plan
from loadmaster.models.training.measurement import TrainingMeasurement
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, TrainingPlan, Weights
from loadmaster.models.training.problem import Point, TrainingProblem
from loadmaster.models.training.replay import Timeline
from loadmaster.models.training.ways import FROZEN, IN_FILES, TRAINED
from loadmaster.models.units import show_bytes

# Role -> the colour of its bytes, from the bottom up.
ROLES = {
    "fixed": "freed",
    "weights": "plan",
    "state": "offloaded",
    "gradient": "recompute",
    "activation": "backward",
}
_NEAREST_FIRST = get_args(Weights)
# Weights, state, update of a group's plan -> how groups of this sort are placed, after their number.
PLACES = {
    (way.weights, way.state, way.update): way.name
    for ways in (TRAINED, IN_FILES, FROZEN)
    for way in sorted(ways, key=lambda way: (_NEAREST_FIRST.index(way.weights), way.state, way.update))
}


def place(group: GroupPlan) -> str:
    """Say where the parameters of a group are, and where they are updated."""
    return PLACES.get((group.weights, group.state, group.update), "placed as no rule allows")


@dataclass(frozen=True)
class Event:
    """A phase (``forward``, ``backward``) or an ``update`` of a group, on the device; ``number`` is of the phase or the
    group."""

    what: str
    number: int
    words: str
    start_us: float
    end_us: float

    @property
    def duration_us(self) -> float:
        """Time that it takes."""
        return self.end_us - self.start_us

    @property
    def module(self) -> str:
        """Name of the stretch of the step that it is a part of."""
        return self.what


@dataclass(frozen=True)
class Replayed:
    """A schedule and its replay, ready to draw."""

    problem: TrainingProblem
    schedule: Schedule
    check: TrainingCheck
    timeline: Timeline

    @cached_property
    def phases(self) -> Phases:
        """Calendar of the step."""
        return Phases(self.problem)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Point of every layer, [layers]."""
        return tuple(self.problem.points(n)[point] for n, point in enumerate(self.schedule.points))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Phases and updates on the device, in order."""
        found = []
        for p, (start, end) in enumerate(zip(self.timeline.starts_us, self.timeline.ends_us, strict=True)):
            what = "forward" if self.phases.is_forward(p) else "backward"
            found.append(Event(what, p, self.phases.words(p), start, end))
        for update in self.timeline.device_updates:
            words = f"update of {self.problem.groups[update.group].name}"
            found.append(Event("update", update.group, words, update.start_us, update.end_us))
        return tuple(sorted(found, key=lambda event: (event.start_us, event.end_us)))

    @cached_property
    def held(self) -> tuple[tuple[float, int], ...]:
        """Starts of stretches in which bytes on the device stay the same, and the phase whose bytes these are. Those of
        a phase are there before it runs, while it waits for loads; those of the one before stay until all stores have
        ended that free some of them."""
        ready = list(self.timeline.ends_us)
        count, step_us = len(ready), self.check.step_us
        for update in self.timeline.device_updates:
            after = self.schedule.groups[update.group].update_after
            assert after is not None
            ready[after % count] = max(ready[after % count], update.end_us)
        starts = [0.0, *ready[:-1]]
        for copy in self.timeline.copies:
            if copy.direction == "to host":
                queued, gone_at = self._stored(copy.group)
                step, phase = divmod(gone_at - (queued - queued % count), count)
                starts[phase] = max(starts[phase], copy.end_us - step * step_us)
        found = [(start, phase) for phase, start in enumerate(starts)]
        return tuple(found if starts[0] <= 0.0 else [(0.0, count - 1), *found])

    @property
    def steps(self) -> list[tuple[float, float, int]]:
        """Start, duration and bytes of each stretch in which bytes on the device stay the same."""
        ends, sizes = [start for start, _ in self.held[1:]], self.check.phase_bytes.tolist()
        both = zip(self.held, [*ends, self.check.step_us], strict=True)
        return [(start, end - start, sizes[phase]) for (start, phase), end in both]

    def _stored(self, group: int) -> tuple[int, int]:
        """Positions at which the store of a group is queued, and at which its memory is free."""
        at = self.schedule.groups[group]
        if at.gradient_gone_at is not None:
            return self.phases.last_gradient(self.problem.groups[group]) + 1, at.gradient_gone_at
        assert at.update_after is not None and at.update_stay is not None
        return at.update_after + 1, at.update_stay.gone_at

    @cached_property
    def waits(self) -> tuple[tuple[Event, float], ...]:
        """Events that wait, and how long, in order."""
        # What the step before ends with comes before the first one.
        ends = [self.events[-1].end_us - self.check.step_us, *(event.end_us for event in self.events)]
        waits = [(event, event.start_us - end) for event, end in zip(self.events, ends, strict=False)]
        return tuple((event, wait) for event, wait in waits if wait > 1e-9 * self.check.step_us)

    @cached_property
    def roles(self) -> tuple[Role, ...]:
        """Bytes on the device by role, [phases] each, from the bottom up; only roles that take some."""
        sizes = self.check.bytes_by_role
        return tuple(Role(role, ROLES[role], sizes[role]) for role in ROLES if sizes[role].any())

    def rows(self) -> list[Row]:
        """Rows of the device, of both directions of the link, of updates on the host and of the disk, where they do
        anything."""
        step_us, groups, host = self.check.step_us, self.problem.groups, self.problem.host.name
        colours = {"forward": "forward", "backward": "backward", "update": "recompute"}
        rows = [Row("device", [Busy(e.start_us, e.end_us, colours[e.what], e.words) for e in self.events])]
        for direction, label in (("to host", f"to {host}"), ("from host", f"from {host}")):
            busy = [
                Busy(start, end, COPIES[copy.what], f"{copy.what} of {groups[copy.group].name}, {size}")
                for copy in self.timeline.copies
                if copy.direction == direction
                for size in (show_bytes(copy.size_bytes),)
                for start, end in within_step(copy.start_us, copy.end_us, step_us)
            ]
            rows.append(Row(label, busy))
        updates = [
            Busy(start, end, "recompute", f"update of {groups[update.group].name}")
            for update in self.timeline.host_updates
            for start, end in within_step(update.start_us, update.end_us, step_us)
        ]
        disk = [
            Busy(start, end, COPIES["state"], f"state of {groups[move.group].name} {move.direction}")
            for move in self.timeline.disk_moves
            for start, end in within_step(move.start_us, move.end_us, step_us)
        ]
        label = "disk" if self.problem.disk is None else self.problem.disk.name
        return [row for row in (*rows, Row(f"updates on {host}", updates), Row(label, disk)) if row.busy]


# What a copy carries -> its colour, which is not that of anything else in the same picture.
COPIES: Mapping[str, str] = {
    "gradient": "recompute",
    "state": "offloaded",
    "weights and state": "budget",
    "copy": "freed",
}


@dataclass(frozen=True)
class TrainingView(Replayed):
    """A plan and its replay; ``measured`` is of the run of the plan, where that is known."""

    plan: TrainingPlan
    measured: TrainingMeasurement | None = None


def view(problem: TrainingProblem, plan: TrainingPlan) -> TrainingView:
    """Replay a plan. Raises InputError if it is of another problem, holds no schedule, or does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    assert plan.schedule is not None and verdict.timeline is not None
    return TrainingView(problem, plan.schedule, verdict, verdict.timeline, plan)


def numbered(items: Sequence[str], order: Sequence[str]) -> str:
    """Count what is the same, in this order first: ``11 resident, 9 with state on the host``."""
    found = sorted({*items}, key=lambda item: (order.index(item) if item in order else len(order), item))
    return ", ".join(f"{items.count(item)} {item}" for item in found)
