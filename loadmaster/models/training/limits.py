"""The budget of a training step: what is enough, what is needed at least, budgets in between, and bounds on its time.

Bounds hold for every schedule that the checker accepts. Bytes: whatever the schedule, in each phase the device holds
what is fixed, of every layer that has run forward and not yet back no less than its smallest point keeps, and of each
group what the least of its ways of being stored holds then. Time: all phases follow each other, so a step takes no less
than each layer's quickest point and the updates on the device; and no less than the host takes for its updates, or the
link for their gradients and copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from loadmaster.models.placement.problem import Tier
from loadmaster.models.summary import Summary
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.residency import Residency, residency
from loadmaster.models.units import show_at_least, show_bytes, show_cost
from loadmaster.solvers.program import IntArray


def plain_schedule(problem: TrainingProblem) -> Schedule:
    """Make the schedule with everything on the device, each layer at its first point, each update as early as can be.
    The checker accepts it under any budget of at least :func:`peak_bytes`."""
    phases = Phases(problem)
    groups = tuple(
        GroupPlan(update_after=phases.update_from(g)) if g.is_trained else GroupPlan(update="none")
        for g in problem.groups
    )
    return Schedule((0,) * len(problem.layers), groups)


def plain_us(problem: TrainingProblem) -> float:
    """Time of a step with everything on the device and every layer at its first point."""
    points = [problem.points(n)[0] for n in range(len(problem.layers))]
    once = sum(point.forward_us + point.backward_us for point in points)
    return once * problem.micro_batches + sum(group.update_us for group in problem.groups if group.is_trained)


def peak_bytes(problem: TrainingProblem) -> int:
    """Bytes that the step takes with everything on the device and every layer at its first point."""
    return int(_plain(problem).phase_bytes.max())


def least_bytes(problem: TrainingProblem) -> tuple[int, str]:
    """Return a size that every schedule needs in some phase, and that phase in words."""
    phases = Phases(problem)
    surely = np.tile(_activations(problem), problem.micro_batches) + problem.fixed_bytes
    updated: list[tuple[Group, int, IntArray]] = []
    for g, group in enumerate(problem.groups):
        ways = list(_ways(problem, group))
        held = _least_of(ways, phases, g)
        surely += held
        if all(way.update_bytes for way in ways):
            updated.append((group, min(way.update_bytes for way in ways), held))
    at = int(surely.argmax())
    most = int(surely[at])
    for group, update_bytes, held in updated:
        # The update comes after one of these phases, and the group's bytes for it are there then.
        after = np.arange(phases.update_from(group), phases.next_use(group)) % len(phases)
        needed = surely[after] - held[after] + update_bytes
        if int(needed.min()) > most:
            at, most = int(after[needed.argmin()]), int(needed.min())
    return most, phases.words(at)


def lacking_on_host(problem: TrainingProblem) -> str | None:
    """Say that host memory is what lacks, as the reason why no plan exists; None: it has no limit."""
    room = problem.host.capacity_bytes
    return None if room is None else f"or more host memory than {show_bytes(room)}, for what has no room on the device"


def least_us(problem: TrainingProblem) -> float:
    """Lower bound on the time of a step under any budget.

    Phases take at least their quickest points. Each update is on the device, and adds to them, or on the host, where
    all of them share one worker, their gradients one direction of the link and their copies the other. For each of the
    three, the best split between device and host, of updates as if they were divisible, is no longer than any plan.
    """
    quickest = sum(min(p.forward_us + p.backward_us for p in problem.points(n)) for n in range(len(problem.layers)))
    device_us = quickest * problem.micro_batches
    shared: list[tuple[float, float, float, float]] = []
    for group in problem.groups:
        if group.is_trained and group.host_update_us is not None:
            store_us = problem.host.store_us(group.copy_gradient_bytes)
            load_us = problem.host.load_us(group.copy_bytes)
            shared.append((group.update_us, group.host_update_us, store_us, load_us))
        elif group.is_trained:
            device_us += group.update_us
    return max((_best_split(device_us, [(row[0], row[n]) for row in shared]) for n in (1, 2, 3)), default=device_us)


def spread(problem: TrainingProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from the least to the peak, ascending."""
    low, high = least_bytes(problem)[0], peak_bytes(problem)
    return sorted({int(b) for b in np.linspace(low, high, count)})


def summary(problem: TrainingProblem) -> Summary:
    """Summarize a step before anything is planned: under which limit it can be trained, and how fast."""
    plain = _plain(problem)
    at = int(plain.phase_bytes.argmax())
    peak, time_us, quickest_us = int(plain.phase_bytes[at]), plain_us(problem), least_us(problem)
    least, least_at = least_bytes(problem)
    where = Phases(problem).words(at)
    unit = problem.unit
    passes = "" if problem.micro_batches == 1 else f", {problem.micro_batches} micro-batches"
    rows = [
        ("peak", f"{show_bytes(peak)} ({peak} bytes) with everything on the device, at {where}"),
        (
            "step",
            f"{show_cost(time_us, unit)} then{passes}; no plan takes less than {show_cost(quickest_us, unit)}",
        ),
        ("least", f"{show_at_least(least)} ({least} bytes): no plan needs less, at {least_at}"),
    ]
    by_role = {role: int(one[at]) for role, one in plain.by_role.items() if one[at]}
    for n, (role, size) in enumerate(sorted(by_role.items(), key=lambda item: -item[1])):
        rows.append(("" if n else "at the peak", f"{show_bytes(size):>9}  {role}"))
    trained = [group for group in problem.groups if group.is_trained]
    device_us = sum(group.update_us for group in trained)
    host_us = [group.host_update_us for group in trained if group.host_update_us is not None]
    said = f"{show_cost(device_us, unit)} on the device"
    if host_us:
        part = "" if len(host_us) == len(trained) else f" for {len(host_us)} of {len(trained)} groups"
        said += f", {show_cost(sum(host_us), unit)} on the host{part}"
    rows.append(("updates", said))
    rows.append(("host", _tier_words(problem.host)))
    if problem.disk is not None:
        rows.append(("disk", _tier_words(problem.disk)))
    if problem.captured_with:
        rows.append(("captured", "with " + ", ".join(f"{name} {of}" for name, of in problem.captured_with.items())))
    figures = {
        "unconstrained_peak_bytes": peak,
        "unconstrained_us": time_us,
        "least_us": quickest_us,
        "least_budget_bytes": least,
        "bytes_by_role": by_role,
    }
    return Summary(problem.name, tuple(rows), figures)


def _tier_words(tier: Tier) -> str:
    said = f"{tier.name}: {tier.to_gbps:g} GB/s there, {tier.from_gbps:g} back"
    if tier.capacity_bytes is not None:
        said += f", {show_bytes(tier.capacity_bytes)}"
    if tier.endurance_bytes is not None:
        said += f", {show_bytes(tier.endurance_bytes)} to be written in its life"
    return said


def _plain(problem: TrainingProblem) -> Residency:
    return residency(problem, plain_schedule(problem))


class _Way(NamedTuple):
    """A way of storing a group, by what it surely holds on the device: ``always``, in phases that ``use`` it, of its
    ``gradient`` until the last part of it is made or (``until_update``) the update may run, and when it is updated
    there (0: it need not be)."""

    always: int
    use: int
    gradient: int
    until_update: bool
    update_bytes: int


def _ways(problem: TrainingProblem, group: Group) -> Iterator[_Way]:
    """List the least of a group's ways for which the host has room: on the device, state alone on the host, streamed
    and updated on either. A copy that stays holds no less than one that is streamed."""
    weights, copy, state = group.weight_bytes, group.copy_bytes, group.state_bytes
    gradient, copy_gradient = group.gradient_bytes, group.copy_gradient_bytes
    room = problem.host.capacity_bytes
    if not group.is_trained:
        yield _Way(weights, 0, 0, False, 0)
        if room is None or weights + copy <= room:
            yield _Way(0, copy, 0, False, 0)
        return
    on_device = weights + state + gradient
    yield _Way(weights + state, 0, gradient, True, on_device)
    if room is None or state <= room:
        yield _Way(weights, 0, gradient, True, on_device)
    if room is None or state + weights + copy <= room:
        yield _Way(0, copy, copy_gradient, True, weights + state + copy_gradient + copy)
    if group.host_update_us is not None and (room is None or state + weights + copy + copy_gradient <= room):
        yield _Way(0, copy, copy_gradient, False, 0)


def _least_of(ways: list[_Way], phases: Phases, g: int) -> IntArray:
    """Bytes of a group that are surely on the device in each phase, [P]."""
    group, uses = phases.problem.groups[g], list(phases.uses[g])
    held: list[IntArray] = []
    for way in ways:
        bytes_held = np.full(len(phases), way.always, dtype=np.int64)
        bytes_held[uses] += way.use
        last = phases.update_from(group) if way.until_update else phases.last_gradient(group)
        bytes_held[phases.first_gradient(group) : last + 1] += way.gradient
        held.append(bytes_held)
    least: IntArray = np.min(held, axis=0)
    return least


def _activations(problem: TrainingProblem) -> IntArray:
    """Bytes that layers surely hold in each phase of a micro-batch, [2 L]."""
    forward, backward, kept = [], [], 0
    for n in range(len(problem.layers)):
        points = problem.points(n)
        forward.append(kept + min(p.kept_bytes + p.forward_bytes for p in points))
        backward.append(kept + min(p.kept_bytes + p.backward_bytes for p in points))
        kept += min(p.kept_bytes for p in points)
    return np.array(forward + backward[::-1], dtype=np.int64)


def _best_split(device_us: float, shared: list[tuple[float, float]]) -> float:
    """Least of the greater of two loads, on a device that has ``device_us`` already, and on another that has nothing.
    Each item adds its first time to the device or its second to the other, or both in part."""
    here, there = device_us + sum(one for one, _ in shared), 0.0
    # Those that save the device most for what they cost elsewhere go first.
    for saved, cost in sorted(shared, key=lambda item: item[0] / item[1] if item[1] else np.inf, reverse=True):
        if there + cost >= here - saved:
            part = (here - there) / (saved + cost) if saved + cost else 0.0
            return here - part * saved
        here, there = here - saved, there + cost
    return here
