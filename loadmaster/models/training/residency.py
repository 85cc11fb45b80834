"""Bytes that a schedule holds in each phase: on the device by role, and on the host.

It expects a schedule whose fields go together (:mod:`loadmaster.models.training.checker` holds them against the rules).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, State, Weights
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.solvers.program import IntArray

ROLES = ("fixed", "activation", "weights", "gradient", "state")


class Places(Protocol):
    """Places of one group's weights, state and update: a group's plan has them, and so has a way."""

    @property
    def weights(self) -> Weights: ...

    @property
    def state(self) -> State: ...

    @property
    def update(self) -> Literal["device", "host", "none"]: ...


@dataclass(frozen=True)
class Residency:
    """Device bytes of each role in each phase, [P], and the bytes that the host and files hold for the whole step."""

    by_role: Mapping[str, IntArray]
    host_bytes: int
    disk_bytes: int = 0

    @cached_property
    def phase_bytes(self) -> IntArray:
        """Device bytes in each phase, [P]."""
        total: IntArray = np.sum(list(self.by_role.values()), axis=0)
        return total


def residency(problem: TrainingProblem, schedule: Schedule, phases: Phases | None = None) -> Residency:
    """Count what a schedule holds; ``phases`` saves a caller with many schedules the calendar."""
    phases = Phases(problem) if phases is None else phases
    count = len(phases)
    held = {role: _Held(count) for role in ("weights", "gradient", "state")}
    for group, plan in zip(problem.groups, schedule.groups, strict=True):
        _hold_group(held, phases, group, plan)
    by_role = {
        "fixed": np.full(count, problem.fixed_bytes, dtype=np.int64),
        "activation": _activations(problem, schedule.points),
        **{role: one.bytes() for role, one in held.items()},
    }
    on_host = sum(map(host_bytes, problem.groups, schedule.groups))
    on_host += schedule.disk_buffers * disk_buffer_bytes(problem.groups, schedule.groups)
    return Residency(by_role, on_host, disk_bytes(problem.groups, schedule.groups))


def host_bytes(group: Group, at: Places) -> int:
    """Bytes of a group on the host: its state, or its master weights with what moves to and from them. Buffers for
    states in files come in addition."""
    size = group.state_bytes if at.state == "host" else 0
    if at.weights != "device":
        size += group.weight_bytes + group.copy_bytes
        if at.update == "host":
            size += group.copy_gradient_bytes
    return size


def disk_bytes(groups: Sequence[Group], places: Sequence[Places]) -> int:
    """Bytes of all states in files. So much is written in every step, and as much is read."""
    return sum(group.state_bytes for group, at in zip(groups, places, strict=True) if at.state == "disk")


def disk_buffer_bytes(groups: Sequence[Group], places: Sequence[Places]) -> int:
    """Bytes of a buffer of host memory that holds any of the states in files."""
    return max((group.state_bytes for group, at in zip(groups, places, strict=True) if at.state == "disk"), default=0)


def gradient_bytes(group: Group, at: Places) -> int:
    """Bytes of a group's gradient on the device, which is as wide as what its layers read."""
    return group.gradient_bytes if at.weights == "device" else group.copy_gradient_bytes


def update_loads_bytes(group: Group, at: Places) -> int:
    """Bytes that an update on the device needs from the host."""
    size = group.state_bytes if at.state == "host" else 0
    return size + (group.weight_bytes if at.weights != "device" else 0)


def update_stores_bytes(group: Group, at: Places) -> int:
    """Bytes that an update on the device leaves to the host: what it loaded, and the copy that it made of weights."""
    return update_loads_bytes(group, at) + (group.copy_bytes if at.weights == "streamed" else 0)


def update_words(plan: GroupPlan) -> Literal["state", "weights and state"]:
    """Name what an update on the device needs from the host."""
    return "state" if plan.weights == "device" else "weights and state"


class _Held:
    """Bytes of one role, collected as steps up and down around the cycle of phases."""

    def __init__(self, count: int) -> None:
        self.count, self.always = count, 0
        self.changes = [0] * (count + 1)

    def add(self, size: int, start: int, end: int) -> None:
        """Add bytes in phases ``start`` .. ``end`` - 1, at most one step long."""
        if end - start >= self.count:
            self.always += size
            return
        start, end = start % self.count, end % self.count
        self.changes[start] += size
        self.changes[end] -= size
        if end < start:
            self.always += size

    def bytes(self) -> IntArray:
        total: IntArray = np.cumsum(np.array(self.changes[:-1], dtype=np.int64)) + self.always
        return total


def _hold_group(held: Mapping[str, _Held], phases: Phases, group: Group, plan: GroupPlan) -> None:
    weights, state = held["weights"], held["state"]
    if plan.weights != "streamed":
        weights.always += group.weight_bytes if plan.weights == "device" else group.copy_bytes
    for stay in plan.stays:
        weights.add(group.copy_bytes, stay.load_at, stay.gone_at)
    if plan.state == "device":
        state.always += group.state_bytes
    gone_at = plan.gradient_gone_at if plan.update_after is None else plan.update_after + 1
    if gone_at is not None:
        held["gradient"].add(gradient_bytes(group, plan), phases.first_gradient(group), gone_at)
    if plan.update_stay is not None:
        start, end = plan.update_stay.load_at, plan.update_stay.gone_at
        if plan.state == "host":
            state.add(group.state_bytes, start, end)
        if plan.weights != "device":
            copy_bytes = group.copy_bytes if plan.weights == "streamed" else 0
            weights.add(group.weight_bytes + copy_bytes, start, end)


def _activations(problem: TrainingProblem, points: Sequence[int]) -> IntArray:
    """Bytes of layers in each phase: what they keep from their forward to their backward pass, and what runs takes."""
    layers = len(problem.layers)
    kept, running = [0] * (2 * layers + 1), [0] * (2 * layers)
    for n, number in enumerate(points):
        point = problem.points(n)[number]
        back = 2 * layers - 1 - n
        kept[n] += point.kept_bytes
        kept[back + 1] -= point.kept_bytes
        running[n] += point.forward_bytes
        running[back] += point.backward_bytes
    once = np.cumsum(np.array(kept[:-1], dtype=np.int64)) + np.array(running, dtype=np.int64)
    return np.tile(once, problem.micro_batches)
