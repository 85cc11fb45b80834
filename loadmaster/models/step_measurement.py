"""Measurement of the step of a plan, of any kind that plans one: its peak, its time, and the allocated bytes over one
step.

What runs a plan writes it next to the plan; reports and pages draw it over what was planned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.canonical import plain, sha256
from loadmaster.models.documents import MEASUREMENT_SCHEMA, Document, read, write
from loadmaster.models.fields import READING, Bounds, Name, Sha256, Size
from loadmaster.models.shown import save_document

MOST_POINTS = 10_000

_Points = Bounds(min_length=2, max_length=MOST_POINTS)
_Time = Annotated[float, Bounds(ge=0, le=1e18)]


class Scheduled(Protocol):
    """Plan with a schedule, where it is feasible."""

    @property
    def problem_sha256(self) -> str: ...

    @property
    def schedule(self) -> Any: ...


@dataclass(frozen=True)
class StepMeasurement:
    """Measurement of one plan that ran on one device (``cpu`` or ``cuda``).

    Attributes:
        schedule_sha256: what ran (see :func:`schedule_sha256`).
        peak_bytes, step_us: of the steps that were timed, without a profiler.
        times_us, allocated_bytes: of one profiled step, from 0 on: so many bytes are allocated from each time to the
            next, resident ones included. The last time is the end of the step.
    """

    problem_sha256: Sha256
    schedule_sha256: Sha256
    device: Name
    peak_bytes: Size
    step_us: _Time
    times_us: Annotated[tuple[_Time, ...], _Points]
    allocated_bytes: Annotated[tuple[Size, ...], _Points]

    __pydantic_config__: ClassVar = READING

    def save(self, path: str | PathLike[str]) -> None:
        """Write it for ``loadmaster show PLAN.json --measured FILE``; ``InputError``: the path cannot be written."""
        save_document(path, write_measurement(self))


Found = TypeVar("Found", bound=StepMeasurement)


def step_measurement(
    of: type[Found], plan: Scheduled, device: str, figures: tuple[int, float], levels: Sequence[tuple[float, int]]
) -> Found:
    """Make the measurement of a feasible plan, from its peak and its time (``figures``), and from (time, bytes from
    then on) of a profiled step, the last at its end."""
    drawn = _thinned(levels)
    return of(
        problem_sha256=plan.problem_sha256,
        schedule_sha256=schedule_sha256(plan),
        device=device,
        peak_bytes=figures[0],
        step_us=figures[1],
        times_us=tuple(at for at, _ in drawn),
        allocated_bytes=tuple(size for _, size in drawn),
    )


def schedule_sha256(plan: Scheduled) -> str:
    """Hash of what a plan does: two plans with one hash are one step, however they were found."""
    return sha256(plain(plan.schedule))


def _thinned(levels: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Thin levels to what a document holds: of neighbours, the highest from the first one's time on. The end stays."""
    together = math.ceil((len(levels) - 1) / (MOST_POINTS - 1))
    if together <= 1:
        return list(levels)
    runs = (levels[n : n + together] for n in range(0, len(levels) - 1, together))
    return [*((run[0][0], max(size for _, size in run)) for run in runs), levels[-1]]


def read_step_measurement(of: type[Found], document: Document, plan: Scheduled) -> Found:
    """Read the measurement of a plan from its document. ``InputError`` names the field: unknown fields or versions,
    values out of range, times that do not ascend from 0, or another problem or plan."""
    found = read(of, MEASUREMENT_SCHEMA, document)
    if found.problem_sha256 != plan.problem_sha256:
        remedy = "Give the measurement that fit wrote next to this plan."
        raise InputError("problem_sha256", found.problem_sha256, "is not the problem that this plan is for", remedy)
    if plan.schedule is None or found.schedule_sha256 != schedule_sha256(plan):
        remedy = "Give the measurement that fit wrote next to this plan."
        raise InputError("schedule_sha256", found.schedule_sha256, "is of a plan that does something else", remedy)
    if len(found.allocated_bytes) != len(found.times_us):
        count = f"are {len(found.allocated_bytes)} for {len(found.times_us)} of times_us"
        raise InputError("allocated_bytes", list(found.allocated_bytes), count, "Give one for each time.")
    if found.times_us[0] != 0:
        raise InputError("times_us[0]", found.times_us[0], "is not 0", "Count times from the start of the step.")
    for n, (before, after) in enumerate(pairwise(found.times_us), 1):
        if after < before:
            raise InputError(f"times_us[{n}]", after, f"is before the one before it, {before}", "Let times ascend.")
    for field, value in (("step_us", found.step_us), (f"times_us[{len(found.times_us) - 1}]", found.times_us[-1])):
        if not value:
            raise InputError(field, value, "is no time that a step takes", "Give more than 0.")
    return found


def write_measurement(found: StepMeasurement) -> dict[str, Any]:
    """Write the document of a measurement; reading it back gives an equal one."""
    return write(MEASUREMENT_SCHEMA, found)
