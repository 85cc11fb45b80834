"""A memory plan joined with its problem, as pictures need it: the timeline, what became of every result, and totals.

Times are microseconds from the start of the step, sizes bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from loadmaster.api.report.words import expect_held
from loadmaster.models.memory import plain
from loadmaster.models.memory.checker import Event, MemoryCheck, check, check_plan
from loadmaster.models.memory.measurement import MemoryMeasurement
from loadmaster.models.memory.peak import Parts, at_moment, folded
from loadmaster.models.memory.plan import MemoryPlan, Schedule
from loadmaster.models.memory.problem import MemoryProblem

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
    """One forward result, and when it is on the device. ``made_by``: the place in the model of the operator that makes
    it, or the graph node where that is not known; ``alive``: the first and the last event of every span; ``resident``:
    the same as times (start, end), without spans that last no time."""

    forward: int
    made_by: str
    size_bytes: int
    fate: Fate
    times_computed: int
    recompute_us: float
    alive: tuple[tuple[int, int], ...]
    resident: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class MemoryView:
    """A plan and its replay, ready to draw. ``unplanned`` is the replay of the step that nothing was planned for;
    ``measured`` is of the run of the plan, where that is known."""

    problem: MemoryProblem
    plan: MemoryPlan
    check: MemoryCheck
    unplanned: MemoryCheck
    tensors: tuple[Tensor, ...]
    measured: MemoryMeasurement | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """The operators of the step in order."""
        return self.check.events

    def bytes_by_fate(self) -> dict[Fate, int]:
        """Total size of the results of each fate."""
        totals: dict[Fate, int] = dict.fromkeys(FATES, 0)
        for tensor in self.tensors:
            totals[tensor.fate] += tensor.size_bytes
        return totals

    def filling(self) -> Parts:
        """Bytes at the peak by module, in a few rows; none where no operator says which module it is of, or where
        nothing takes a byte."""
        assert self.plan.schedule is not None
        if self.check.peak is None:
            return []
        parts = at_moment(self.problem, self.plan.schedule, self.check.peak)
        known = any(f.module is not None for f in self.problem.forward)
        return folded(parts) if known else []

    def largest(self, count: int) -> list[Tensor]:
        """The largest results that the backward pass has to do with."""
        return sorted((t for t in self.tensors if t.fate != "freed"), key=lambda t: (-t.size_bytes, t.forward))[:count]


def view(problem: MemoryProblem, plan: MemoryPlan) -> MemoryView:
    """Replay a plan and work out what became of every result. Raises InputError if the plan is of another problem,
    holds no schedule, or does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    assert plan.schedule is not None
    unplanned = check(problem, plain.formulate(problem), budget_bytes=0)
    return MemoryView(problem, plan, verdict, unplanned, _tensors(problem, plan.schedule, verdict))


def _tensors(problem: MemoryProblem, schedule: Schedule, check: MemoryCheck) -> tuple[Tensor, ...]:
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
                    i,
                    operator.made_by or operator.op,
                    operator.output_bytes,
                    fate,
                    runs[i],
                    again_us[i],
                    tuple(spans[i]),
                    _times(spans[i], check),
                )
            )
    return tuple(tensors)


def _residency(problem: MemoryProblem, schedule: Schedule, check: MemoryCheck) -> dict[int, list[tuple[int, int]]]:
    """Spans of each forward result on the device, as first and last event by their places in the replay: from its
    computation (or the stage that issues its fetch) until its last reader has run, or, where it is sent to the host,
    until the operator starts that waits for it to be gone."""
    by_stage: dict[int, list[int]] = defaultdict(list)
    for place, event in enumerate(check.events):
        by_stage[event.stage].append(place)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    stored: set[int] = set()
    for t, stage in enumerate(schedule.stages):
        places = by_stage[t]
        start_of = dict.fromkeys(stored, places[0])
        start_of |= {f.forward: by_stage[min(f.issued_at, t)][0] for f in stage.fetches}
        last_read: dict[int, int] = {}
        for place in places:
            event = check.events[place]
            if event.what != "backward":
                start_of.setdefault(event.operator, place)
                reads = (event.operator, *problem.forward[event.operator].inputs)
            else:
                assert stage.implementation is not None
                reads = problem.backward[t - 1].implementations[stage.implementation].needs
            last_read.update(dict.fromkeys(reads, place))
        keep = set(stage.keep)
        if t == 0:
            for i, gone in schedule.departures(len(problem.forward)).items():
                last_read[i] = max(p for p in places if check.events[p].operator < gone)
        for i, start in start_of.items():
            if i in keep:
                _extend(spans[i], start, places[-1])
            elif i in last_read:
                _extend(spans[i], start, last_read[i])
        stored = keep
    return spans


def _extend(spans: list[tuple[int, int]], first: int, last: int) -> None:
    """Append a span, joined to the one before when no event is between them."""
    if spans and first <= spans[-1][1] + 1:
        spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
    else:
        spans.append((first, last))


def _times(spans: list[tuple[int, int]], check: MemoryCheck) -> tuple[tuple[float, float], ...]:
    """Spans of events as spans of time."""
    ends = [e.start_us + e.duration_us for e in check.events]
    times = ((check.events[first].start_us, ends[last]) for first, last in spans)
    return tuple((start, end) for start, end in times if end > start)
