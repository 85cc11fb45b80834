"""Replays a schedule of training steps without a look at how it was found.

What a schedule may do. P phases make a step (:mod:`loadmaster.models.training.phases`). Phases b0 and b* make the first
and the last part of a group's gradient, its update may run from U on, and N is its first use in the next step.
- It has a point for every layer and a plan for every group.
- A group that is trained is updated: on the device, with weights there and state there or on the host, or with both on
  the host; or on the host, which can run the update and holds the weights, and the state or a disk for it. A frozen one
  has no update, and nothing of it but weights is on the host.
- Fields are given where they mean something, and nowhere else.
- ``update_after`` is in U .. N - 1. ``update_stay`` has it inside: load_at <= update_after < gone_at <= load_at + P.
- ``gradient_gone_at`` is in b* + 1 .. b0 + P, ``copy_load_at`` in b* + 1 .. N.
- ``stays`` start at 0 .. P - 1, are no longer than a step, and do not overlap. Each has a use in it, and every use is
  in one. None goes on over the update, from a use of this step to one of the next.
- In every phase, what is on the device takes no more than the budget
  (:mod:`loadmaster.models.training.residency`). The host holds no more than its capacity, nor does the disk.
- States in files have from one buffer on the host to one each.
- The step ends: nothing waits for what waits for it.
The time of a step is that of :mod:`loadmaster.models.training.replay`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.statements import Recomputed, Statements, unexplained
from loadmaster.models.training.limits import lacking_on_host, least_bytes, least_us, peak_bytes, plain_us
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay, TrainingPlan
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.replay import StuckError, Timeline, replay
from loadmaster.models.training.residency import ROLES, residency
from loadmaster.models.units import show_bytes
from loadmaster.solvers.program import IntArray

# More would say the same again.
_MOST_SAID = 20


@dataclass(frozen=True)
class TrainingCheck:
    """The verdict.

    Attributes:
        violations: in words, empty when the schedule holds.
        peak_bytes, peak_at: the most that is on the device, and the phase then.
        phase_bytes, bytes_by_role: [P] what is on the device in each phase, in all and by role; 0 where the fields of
            the schedule do not go together.
        host_bytes: that the host holds.
        disk_bytes: that files hold; a step writes all of them, and reads them.
        stored_bytes, loaded_bytes, host_updates_us: that a step moves, and for how long the host updates.
        timeline: None where the schedule does not hold.
    """

    violations: tuple[str, ...]
    peak_bytes: int
    peak_at: str
    phase_bytes: IntArray = field(repr=False)
    bytes_by_role: Mapping[str, IntArray] = field(repr=False)
    host_bytes: int
    stored_bytes: int
    loaded_bytes: int
    host_updates_us: float
    timeline: Timeline | None = field(repr=False)
    disk_bytes: int = 0

    @property
    def ok(self) -> bool:
        """True if there are no violations."""
        return not self.violations

    @property
    def step_us(self) -> float:
        """Time of a step in microseconds."""
        return 0.0 if self.timeline is None else self.timeline.step_us

    @property
    def stall_us(self) -> float:
        """Its part in which the device only waits."""
        return 0.0 if self.timeline is None else self.timeline.stall_us

    @property
    def objective(self) -> float:
        """Time of a step in microseconds."""
        return self.step_us

    def summary(self) -> dict[str, object]:
        """Summarize the check for the plan document."""
        return {
            "ok": self.ok,
            "peak_bytes": self.peak_bytes,
            "peak_at": self.peak_at,
            "step_us": self.step_us,
            "stall_us": self.stall_us,
            "stored_bytes": self.stored_bytes,
            "loaded_bytes": self.loaded_bytes,
            "host_bytes": self.host_bytes,
            "host_updates_us": self.host_updates_us,
            "disk_bytes": self.disk_bytes,
        }


def check_plan(problem: TrainingProblem, plan: TrainingPlan) -> TrainingCheck:
    """Replay a plan; raise InputError for a plan of another problem, or an infeasible one."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.schedule is None:
        raise InputError("status", plan.status, "there is no schedule to replay", "Check a plan that was found.")
    return check(problem, plan.schedule, plan.budget_bytes)


def check(
    problem: TrainingProblem, schedule: Schedule, budget_bytes: int, phases: Phases | None = None
) -> TrainingCheck:
    """Hold a schedule against the rules above, and time it."""
    phases = Phases(problem) if phases is None else phases
    wrong = list(_disagreements(phases, schedule))
    by_role, on_host, in_files = {role: np.zeros(len(phases), dtype=np.int64) for role in ROLES}, 0, 0
    if not wrong:
        held = residency(problem, schedule, phases)
        by_role, on_host, in_files = dict(held.by_role), held.host_bytes, held.disk_bytes
    phase_bytes: IntArray = np.sum(list(by_role.values()), axis=0)
    at = int(phase_bytes.argmax())
    peak = int(phase_bytes[at])
    if peak > budget_bytes:
        over = show_bytes(peak - budget_bytes)
        wrong.append(f"{show_bytes(peak)} at {phases.words(at)} are {over} over the budget")
    for tier, size in ((problem.host, on_host), (problem.disk, in_files)):
        if tier is not None and tier.capacity_bytes is not None and size > tier.capacity_bytes:
            wrong.append(f"{tier.name} holds {show_bytes(size)}, of {show_bytes(tier.capacity_bytes)}")
    timeline = None
    if not wrong:
        try:
            timeline = replay(problem, schedule, phases)
        except StuckError as stuck:
            wrong.append(str(stuck))
    copies = () if timeline is None else timeline.copies
    updates = () if timeline is None else timeline.host_updates
    return TrainingCheck(
        violations=tuple(wrong[:_MOST_SAID]),
        peak_bytes=peak,
        peak_at=phases.words(at),
        phase_bytes=phase_bytes,
        bytes_by_role=by_role,
        host_bytes=on_host,
        stored_bytes=sum(copy.size_bytes for copy in copies if copy.direction == "to host"),
        loaded_bytes=sum(copy.size_bytes for copy in copies if copy.direction == "from host"),
        host_updates_us=sum(problem.groups[update.group].host_update_us or 0.0 for update in updates),
        timeline=timeline,
        disk_bytes=in_files,
    )


def _disagreements(phases: Phases, schedule: Schedule) -> Iterator[str]:
    """Say what in a schedule does not go together, before its bytes and times."""
    problem = phases.problem
    if len(schedule.points) != len(problem.layers):
        yield f"there are {len(schedule.points)} points, for {len(problem.layers)} layers"
    if len(schedule.groups) != len(problem.groups):
        yield f"there are plans for {len(schedule.groups)} groups, of {len(problem.groups)}"
    for n, (layer, number) in enumerate(zip(problem.layers, schedule.points, strict=False)):
        points = len(problem.points(n))
        if not 0 <= number < points:
            yield f"{layer.name} is run at point {number}: its points are numbered 0 to {points - 1}"
    for g, (group, plan) in enumerate(zip(problem.groups, schedule.groups, strict=False)):
        places = list(_wrong_places(group, plan, has_disk=problem.disk is not None))
        yield from places or _GroupRules(phases, g, plan).violations()
    count = sum(plan.state == "disk" for plan in schedule.groups)
    if not min(count, 1) <= schedule.disk_buffers <= count:
        yield f"disk_buffers are {schedule.disk_buffers}, for {count} states in files"


def _wrong_places(group: Group, plan: GroupPlan, *, has_disk: bool) -> Iterator[str]:
    """Say what is in a place where it cannot be used, or updated."""
    name = group.name
    if not group.is_trained:
        if plan.update != "none":
            yield f"{name} is frozen: it has no update"
        if plan.state != "device":
            yield f"{name} is frozen: it has no state to be on the {plan.state}"
    elif plan.update == "none":
        yield f"{name} is trained: it needs an update"
    elif plan.weights != "device" and plan.state == "device":
        yield f"the state of {name} is on the device, and its weights are on the host"
    elif plan.state == "disk" and not has_disk:
        yield f"the state of {name} is in files, and there is no disk"
    elif plan.state == "disk" and plan.update != "host":
        yield f"the state of {name} is in files, and its update is not on the host, which reads them"
    elif plan.update == "host":
        if plan.weights == "device":
            yield f"{name} is updated on the host, and its weights are on the device"
        if group.host_update_us is None:
            yield f"{name} is updated on the host, which cannot run that update"


class _GroupRules:
    """Rules of one group's fields, whose places go together."""

    def __init__(self, phases: Phases, g: int, plan: GroupPlan) -> None:
        self.phases, self.plan, self.count = phases, plan, len(phases)
        self.group = phases.problem.groups[g]
        self.uses = phases.uses[g]

    def violations(self) -> Iterator[str]:
        plan, group, name = self.plan, self.group, self.group.name
        last, following = self.phases.last_gradient(group), self.phases.next_use(group)
        on_device, on_host = plan.update == "device", plan.update == "host"
        away = plan.state == "host" or plan.weights != "device"
        first_update = self.phases.update_from(group)
        yield from self._moment("update_after", on_device, first_update, following - 1)
        most = self.phases.first_gradient(group) + self.count
        yield from self._moment("gradient_gone_at", on_host, last + 1, most)
        yield from self._moment("copy_load_at", on_host and plan.weights == "copy", last + 1, following)
        if (plan.update_stay is not None) != (on_device and away):
            needed = "missing" if plan.update_stay is None else "of no use"
            yield f"update_stay of {name} is {needed}"
        elif plan.update_stay is not None and plan.update_after is not None:
            stay = plan.update_stay
            if not (0 <= stay.load_at <= plan.update_after < stay.gone_at <= stay.load_at + self.count):
                said = f"update_stay of {name} from {stay.load_at} to {stay.gone_at}"
                yield f"{said} is no stay of at most a step around its update after {plan.update_after}"
        if plan.weights == "streamed":
            yield from self._stays()
        elif plan.stays:
            yield f"stays of {name} are of no use: its weights are not streamed"

    def _moment(self, what: str, wanted: bool, least: int, most: int) -> Iterator[str]:
        """Hold a position against its range, where it is wanted."""
        given: int | None = getattr(self.plan, what)
        if given is None:
            if wanted:
                yield f"{what} of {self.group.name} is missing"
        elif not wanted:
            yield f"{what} of {self.group.name} is of no use"
        elif not least <= given <= most:
            yield f"{what} of {self.group.name} is {given}, which is not in {least}..{most}"

    def _stays(self) -> Iterator[str]:
        name, count = self.group.name, self.count
        stays = sorted(self.plan.stays, key=lambda stay: (stay.load_at, stay.gone_at))
        wrong = [s for s in stays if not (0 <= s.load_at < count and s.load_at < s.gone_at <= s.load_at + count)]
        if wrong:
            yield from (f"{self._words(stay)} is no part of a step" for stay in wrong[:_MOST_SAID])
            return
        if stays:
            around = [*stays[1:], Stay(stays[0].load_at + count, stays[0].gone_at + count)]
            both = [(s, after) for s, after in zip(stays, around, strict=True) if after.load_at < s.gone_at]
            if both:
                yield from (f"{self._words(s)} overlaps the one from {after.load_at}" for s, after in both[:_MOST_SAID])
                return
        used: set[int] = set()
        for stay in stays:
            of_this = self._uses_in(stay.load_at, stay.gone_at)
            of_next = self._uses_in(stay.load_at - count, stay.gone_at - count)
            used.update(of_this, of_next)
            if not of_this and not of_next:
                yield f"{self._words(stay)} has no use in it"
            if of_this and of_next and self.group.is_trained:
                yield f"{self._words(stay)} goes on over the update of its weights"
        missing = next((use for use in self.uses if use not in used), None)
        if missing is not None:
            yield f"{name} is not on the device at phase {missing}, {self.phases.words(missing)}, which uses it"

    def _uses_in(self, start: int, end: int) -> tuple[int, ...]:
        return self.uses[bisect_left(self.uses, start) : bisect_left(self.uses, end)]

    def _words(self, stay: Stay) -> str:
        return f"the stay of {self.group.name} from {stay.load_at} to {stay.gone_at}"


def _recompute(problem: TrainingProblem, plan: TrainingPlan, verdict: TrainingCheck | None) -> Recomputed:
    fields = {"plain_us": plain_us(problem), "method": plan.options.get("method", plan.method)}
    if verdict is not None:
        return Recomputed(fields, least_us(problem))
    peak, (least, where) = peak_bytes(problem), least_bytes(problem)
    if peak <= plan.budget_bytes:
        return Recomputed({**fields, "status": "feasible", "infeasibility": None})
    if plan.infeasibility is None:
        return unexplained(fields)
    # A phase that needs more by itself says how much. It takes a search to say that phases together do.
    # So it does to say whether more host memory would do.
    minimum, said_where = plan.infeasibility.minimum_budget_bytes, plan.infeasibility.where
    follows: dict[str, object] = {}
    if least > plan.budget_bytes:
        minimum = follows["minimum_budget_bytes"] = least
    if least > plan.budget_bytes or said_where != lacking_on_host(problem):
        follows["where"] = where
    follows["short_bytes"] = minimum - plan.budget_bytes
    least = max(least, plan.budget_bytes + 1)
    said = f"infeasibility.minimum_budget_bytes: the plan says {minimum}, which is not in {least}..{peak}"
    return Recomputed({**fields, "infeasibility": follows}, wrong=() if least <= minimum <= peak else (said,))


STATEMENTS = Statements(
    decisions=frozenset({"schedule"}),
    trusted=frozenset({"infeasibility.minimum_budget_bytes", "infeasibility.where", "prices"}),
    recompute=_recompute,
)
