"""Baselines: what people run today, each with the fewest changes that fit a budget.

``plain`` keeps everything on the device. ``checkpoint`` has layers keep the least. ``zero-offload`` [Ren21] has copies
of the weights on the device and all updates on the host, ``fsdp`` streams the copies, too. ``by-hand`` is what a person
writes for one device: checkpointed layers, as few groups as needed with their state on the host, and updates on the
device as soon as gradients are complete. ``zero-infinity`` [Raj21] is ``fsdp`` with all state in files, where
there is a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.ways import Way, ways

__all__ = ["BASELINES", "Mix", "baseline"]

BASELINES = ("plain", "checkpoint", "zero-offload", "fsdp", "zero-infinity", "by-hand")


# Numbers of groups with their state on the host that are tried by hand.
_TRIED_BY_HAND = 10


class Mix(NamedTuple):
    """The number of the point of each layer, and of the way of each group; and by how many phases the update of each
    group is put off where it needs bytes from the host, none: all run as early as they may."""

    points: tuple[int, ...]
    ways: tuple[int, ...]
    delays: tuple[int, ...] = ()


def baseline(problem: TrainingProblem, method: str, step_us: Callable[[Mix], float | None]) -> Mix | None:
    """Return a baseline's mix with the fewest changes that fit; None if none does. ``step_us`` returns the step of a
    mix that fits, and None for one that does not."""
    first, least = plain_points(problem), least_points(problem)
    resident = _like(problem, "device", "device", "device")
    if method == "plain":
        return _fewest([Mix(first, resident)], step_us)
    if method == "checkpoint":
        return _fewest([Mix(points, resident) for points in _one_by_one(first, least)], step_us)
    if method == "zero-offload":
        offloaded = _like(problem, "copy", "host", "host")
        return _fewest([Mix(points, offloaded) for points in _one_by_one(first, least)], step_us)
    if method == "fsdp":
        return _fewest([Mix(least, _like(problem, "streamed", "host", "host"))], step_us)
    if method == "zero-infinity":
        in_files = [Mix(least, _like(problem, "streamed", "disk", "host"))] if problem.disk is not None else []
        return _fewest(in_files, step_us) if in_files else None
    away = _like(problem, "device", "host", "device")
    hand_written = [Mix(least, mixed) for mixed in _one_by_one(resident, away)]
    fewest = _fewest(hand_written, step_us)
    if fewest is None:
        return None
    # Where few fit just so, each waits for the one before: a person would try some more.
    more = hand_written[hand_written.index(fewest) :]
    times = [
        (us, n) for n in range(0, len(more), -(-len(more) // _TRIED_BY_HAND)) if (us := step_us(more[n])) is not None
    ]
    return more[min(times)[1]]


def plain_points(problem: TrainingProblem) -> tuple[int, ...]:
    """Return the first point of every layer."""
    return (0,) * len(problem.layers)


def least_points(problem: TrainingProblem) -> tuple[int, ...]:
    """Return the point of every layer that keeps the least, the quickest of them."""

    def least(layer: int) -> int:
        points = problem.points(layer)
        return min(
            range(len(points)), key=lambda n: (points[n].kept_bytes, points[n].forward_us + points[n].backward_us)
        )

    return tuple(map(least, range(len(problem.layers))))


def _like(problem: TrainingProblem, *places: str) -> tuple[int, ...]:
    """Return the way of every group that is the most like the given places of weights, state and update."""
    return tuple(_nearest(group, places, has_disk=problem.disk is not None) for group in problem.groups)


def _nearest(group: Group, places: Sequence[str], *, has_disk: bool) -> int:
    def differences(n: int) -> int:
        way: Way = found[n]
        # The place of the weights matters the most, since it says what layers read.
        return 4 * (way.weights != places[0]) + 2 * (way.update != places[2]) + (way.state != places[1])

    found = ways(group, has_disk=has_disk)
    return min(range(len(found)), key=differences)


def _one_by_one(start: tuple[int, ...], end: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List what leads from one tuple to another, entry by entry."""
    changed = [n for n, (a, b) in enumerate(zip(start, end, strict=True)) if a != b]
    found = [start]
    for n in changed:
        found.append((*found[-1][:n], end[n], *found[-1][n + 1 :]))
    return found


def _fewest(mixes: Sequence[Mix], step_us: Callable[[Mix], float | None]) -> Mix | None:
    low, high = 0, len(mixes) - 1
    if step_us(mixes[high]) is None:
        return None
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if step_us(mixes[half]) is not None else (half + 1, high)
    return mixes[high]
