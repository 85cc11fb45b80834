"""A plan joined with its problem, as pictures need it: the timeline, what became of every result, and totals.

Times are microseconds from the start of the step, sizes bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.models.kinds import Plan, Problem, check_plan
from loadmaster.models.memory.checker import Check, Event
from loadmaster.models.memory.plan import Schedule

Fate = Literal["kept", "recomputed", "offloaded", "freed"]
FATES: tuple[Fate, ...] = ("kept", "recomputed", "offloaded", "freed")
MEANING: dict[Fate, str] = {
    "kept": "stays on the device until the backward pass",
    "recomputed": "freed, then computed again",
    "offloaded": "sent to host memory and fetched back",
    "freed": "not read again after the forward pass",
}


@dataclass(frozen=True)
class Tensor:
    """One forward result. ``resident`` are the spans of time in which it is on the device (start, end)."""

    forward: int
    op: str
    node: str | None
    size_bytes: int
    fate: Fate
    times_computed: int
    recompute_us: float
    resident: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class View:
    """A plan and its replay, ready to draw."""

    problem: Problem
    plan: Plan
    check: Check
    tensors: tuple[Tensor, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        """The operators in order."""
        return self.check.events

    def bytes_by_fate(self) -> dict[Fate, int]:
        """Total size of the results of each fate."""
        totals: dict[Fate, int] = dict.fromkeys(FATES, 0)
        for tensor in self.tensors:
            totals[tensor.fate] += tensor.size_bytes
        return totals

    def largest(self, count: int) -> list[Tensor]:
        """The largest results that the backward pass has to do with."""
        return sorted((t for t in self.tensors if t.fate != "freed"), key=lambda t: (-t.size_bytes, t.forward))[:count]


def view(problem: Problem, plan: Plan) -> View:
    """Replay a plan and work out what became of every result.

    Raises:
        InputError: the plan is of another problem, holds no schedule, or does not pass the checker.
    """
    verdict = check_plan(problem, plan)
    if not verdict.ok:
        raise InputError("plan", plan.name, verdict.violations[0], "Plan the problem again: this plan does not hold.")
    assert plan.schedule is not None
    return View(problem, plan, verdict, _tensors(problem, plan.schedule, verdict))


def _tensors(problem: Problem, schedule: Schedule, check: Check) -> tuple[Tensor, ...]:
    spans = _residency(problem, schedule, check)
    runs: dict[int, int] = defaultdict(int)
    again_us: dict[int, float] = defaultdict(float)
    for event in check.events:
        if event.what != "backward":
            runs[event.operator] += 1
        if event.what == "recompute":
            again_us[event.operator] += event.duration_us
    kept = set(schedule.stages[0].keep)
    tensors = []
    for operator in problem.forward:
        i = operator.id
        fate: Fate = "freed"
        if i in schedule.offload:
            fate = "offloaded"
        elif i in again_us:
            fate = "recomputed"
        elif i in kept:
            fate = "kept"
        if runs[i]:
            tensors.append(
                Tensor(
                    i, operator.op, operator.node, operator.output_bytes, fate, runs[i], again_us[i], tuple(spans[i])
                )
            )
    return tuple(tensors)


def _residency(problem: Problem, schedule: Schedule, check: Check) -> dict[int, list[tuple[float, float]]]:
    """When each forward result is on the device: from its computation (or its fetch) to its last reader."""
    by_stage: dict[int, list[Event]] = defaultdict(list)
    for event in check.events:
        by_stage[event.stage].append(event)
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    stored: set[int] = set()
    clock = 0.0
    for t, stage in enumerate(schedule.stages):
        events = by_stage[t]
        end = _end(events[-1]) if events else clock
        start_of = dict.fromkeys(stored | {f.forward for f in stage.fetches}, clock)
        last_read = dict(start_of)
        for event in events:
            if event.what != "backward":
                start_of.setdefault(event.operator, event.start_us)
                reads = (event.operator, *problem.forward[event.operator].inputs)
            else:
                assert stage.implementation is not None
                reads = problem.backward[t - 1].implementations[stage.implementation].needs
            for i in reads:
                last_read[i] = _end(event)
        keep = set(stage.keep)
        for i, start in start_of.items():
            _extend(spans[i], start, end if i in keep else last_read.get(i, start))
        stored, clock = keep, end
    return spans


def _end(event: Event) -> float:
    return event.start_us + event.duration_us


def _extend(spans: list[tuple[float, float]], start: float, end: float) -> None:
    """Append a span, joined to the one before when they touch."""
    if end <= start:
        return
    if spans and start <= spans[-1][1]:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
    else:
        spans.append((start, end))
