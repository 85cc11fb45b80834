"""Plans an index by predictions, runs what was chosen and what may be quicker, and plans again with what was measured.

The loop of [Shah23], section 6.3.1, for many shards and under a time limit. A round is one plan and the runs after it:
of every shard what was chosen, if it never ran, and then up to three candidates that may be quicker, those first that
may gain most in the time of their run. Where none is left, what was chosen and what came close to it run a second time,
and the least times count: what other programs add to one run is rarely added to both. It ends when there is nothing to
run that may change the plan: no candidate runs more than twice on a shard, and every round but the last runs some.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from loadmaster.errors import InputError
from loadmaster.executor.index.measuring import cost_of, measure
from loadmaster.models.index.documents import check_problem
from loadmaster.models.index.measured import SECONDS, corrected, may_gain_us, near_ties, with_measured
from loadmaster.models.index.plan import IndexPlan
from loadmaster.models.index.problem import Cost, Figure, IndexProblem, Shard
from loadmaster.models.index.serving import operations_us, refusal, serving, size_bytes, time_us
from loadmaster.models.index.trace import ERASE, INSERT, SCAN, Trace

Planner = Callable[[IndexProblem], IndexPlan]
Stop = Literal["stable", "time", "cancel"]

# Runs of a shard in a round, in addition to what was chosen: after so many the plan may look different.
_TIES_IN_A_ROUND = 3
# Share of the seconds that is kept for running what later rounds choose.
_KEPT = 0.1
# Share of the chosen one's time: what comes so close may be quicker in truth.
_CLOSE = 0.1


@dataclass(frozen=True)
class Ran:
    """One candidate that ran on a shard: the cost as predicted, and as measured; of two runs, the least times."""

    shard: int
    candidate: int
    predicted: Cost
    cost: Cost


@dataclass(frozen=True)
class Round:
    """A plan's objective, None where it was infeasible, and what ran after it."""

    objective: float | None
    ran: tuple[Ran, ...]


@dataclass(frozen=True)
class Tuned:
    """Result of tuning an index; ``problem`` has what was measured, and the plan is of this one.

    ``stopped_by`` "stable": nothing that did not run may be quicker than what was chosen, by the quantiles of the
    predictions; otherwise there was no time left, or it was cancelled.
    """

    problem: IndexProblem
    plan: IndexPlan
    rounds: tuple[Round, ...]
    stopped_by: Stop

    @property
    def ran(self) -> tuple[Ran, ...]:
        """Runs of all rounds, in order."""
        return tuple(ran for of in self.rounds for ran in of.ran)


def tune(
    problem: IndexProblem,
    traces: Sequence[Trace],
    plan: Planner,
    *,
    most_operations: int | None = None,
    seconds: float = SECONDS,
    on_run: Callable[[Ran], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Tuned:
    """Plan, run, and plan again until the plan stays.

    Args:
        traces: one for each shard.
        plan: such as ``lambda problem: loadmaster.plan(problem, budget_bytes="2GiB")``.
        most_operations: of a trace that run at most, from its beginning; None: all. Of a part, another candidate may be
            the quickest than of the whole, above all where keys are inserted.
        seconds: for all of it. A run that would take longer than what is left of them is left out.
        on_run, cancelled: hears of every run; is asked between runs, and the plan of what is known then is the last.

    Raises:
        InputError: the number of traces, or the keys or operations of one, are not those of the shards; a number is out
            of range; by what was measured, no candidate can serve a shard any more.
        MemoryError: a run takes more than there is.
    """
    _expect(problem, traces, most_operations, seconds)

    operations = [
        len(t.operations) if most_operations is None else min(most_operations, len(t.operations)) for t in traces
    ]

    def run(s: int, c: int) -> Cost:
        predicted = _known(problem, s, c)
        cost = cost_of(measure(traces[s], problem.candidates[c], most_operations=most_operations), predicted)
        if on_run is not None:
            on_run(Ran(s, c, predicted, cost))
        return cost

    runner = _Runner(problem, run, operations, _Clock(seconds, cancelled))
    rounds: list[Round] = []
    while True:
        now = corrected(problem, runner.costs)
        check_problem(now)
        found = plan(now)
        ran = runner.round(now, found)
        rounds.append(Round(found.objective, tuple(ran)))
        if not ran:
            return Tuned(now, found, tuple(rounds), runner.stopped_by)


def _expect(problem: IndexProblem, traces: Sequence[Trace], most_operations: int | None, seconds: float) -> None:
    if len(traces) != len(problem.shards):
        remedy = f"Give one for each of the {len(problem.shards)} shards."
        raise InputError("traces", len(traces), "are not as many as shards", remedy)
    for s, (shard, trace) in enumerate(zip(problem.shards, traces, strict=True)):
        _expect_of(shard, trace, f"traces[{s}]")
    if most_operations is not None and most_operations < 1:
        raise InputError("most_operations", most_operations, "is less than 1", "Give a whole number of at least 1.")
    if not seconds > 0:
        raise InputError("seconds", seconds, "is not above 0", "Give seconds.")


def _expect_of(shard: Shard, trace: Trace, field: str) -> None:
    remedy = f"Give the trace of {shard.name}, the one that its problem was made from."
    if len(trace.keys) != shard.keys:
        raise InputError(field, len(trace.keys), f"are not as many keys as {shard.name} has, {shard.keys}", remedy)
    for what, codes, expected in (
        ("writes", (INSERT, ERASE), shard.operations.writes),
        ("scans", (SCAN,), shard.operations.scans),
    ):
        count = int(np.isin(trace.operations, codes).sum())
        if count and not expected:
            raise InputError(field, f"{count} {what}", f"are in the trace, and {shard.name} has none", remedy)


class _Clock:
    """Clock of the time that is left, until the end or a cancellation."""

    def __init__(self, seconds: float, cancelled: Callable[[], bool] | None) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self.cancelled = cancelled or (lambda: False)

    def has(self, needed_us: float, *, kept: float = 0.0) -> bool:
        """Return whether so much time is left, in addition to a share of the whole that is kept."""
        return time.monotonic() + needed_us / 1e6 + kept * self._seconds <= self._end


class _Runner:
    """Runs candidates, each on a shard once, and a second time where it is close."""

    def __init__(
        self, problem: IndexProblem, run: Callable[[int, int], Cost], operations: Sequence[int], clock: _Clock
    ) -> None:
        self._problem, self._run, self._operations, self._clock = problem, run, operations, clock
        self.costs: dict[tuple[int, int], Cost] = {}
        self._twice: set[tuple[int, int]] = set()
        self.stopped_by: Stop = "stable"

    def round(self, now: IndexProblem, plan: IndexPlan) -> list[Ran]:
        """Run what was chosen, then what may be quicker, else what is close; without a plan, what may save memory."""
        self.stopped_by = "stable"
        chosen = [choice.candidate for choice in plan.choices]
        ran = []
        for s, c in enumerate(chosen) if chosen else _may_make_room(now, plan):
            if not _known(now, s, c).measured and self._may_run(now, s, c, kept=0.0):
                ran.append(self._ran(s, c))
        if not chosen:
            return ran
        ran += self._ties(corrected(self._problem, self.costs), chosen, plan.budget_bytes)
        return ran or self._again(now, chosen, plan.budget_bytes)

    def _ties(self, known: IndexProblem, chosen: list[int], budget_bytes: int) -> list[Ran]:
        """Run near ties of the chosen; those that may gain most in the time of their run come first."""
        best = list(chosen)
        ran: list[Ran] = []
        of_shard = Counter[int]()
        waiting: list[tuple[float, int, int]] = []

        def wait(s: int) -> None:
            shard = known.shards[s]
            room_bytes = known.room_bytes(shard.host, budget_bytes)
            for c in near_ties(known, s, best[s]):
                if _least_bytes(_known(known, s, c)) <= room_bytes and self._may_run(known, s, c, kept=_KEPT):
                    gain = may_gain_us(shard, best[s], c) / max(self._needed_us(known, s, c), 1.0)
                    heapq.heappush(waiting, (-gain, s, c))
                    return

        for s in range(len(known.shards)):
            wait(s)
        while waiting:
            _, s, c = heapq.heappop(waiting)
            if not self._may_run(known, s, c, kept=_KEPT):
                continue
            ran.append(self._ran(s, c))
            known = with_measured(known, {(s, c): ran[-1].cost})
            if _is_better(known, s, c, best[s]):
                best[s] = c
            of_shard[s] += 1
            if of_shard[s] < _TIES_IN_A_ROUND:
                wait(s)
        return ran

    def _may_run(self, known: IndexProblem, s: int, c: int, *, kept: float) -> bool:
        """Return whether there is time to run a candidate; otherwise ``stopped_by`` says why not."""
        if self._clock.cancelled():
            self.stopped_by = "cancel"
            return False
        if self._clock.has(self._needed_us(known, s, c), kept=kept):
            return True
        self.stopped_by = "time"
        return False

    def _needed_us(self, known: IndexProblem, s: int, c: int) -> float:
        shard, cost = known.shards[s], _known(known, s, c)
        share = self._operations[s] / shard.operations.total if shard.operations.total else 0.0
        return cost.rebuild_us + share * operations_us(shard, cost)

    def _again(self, now: IndexProblem, chosen: list[int], budget_bytes: int) -> list[Ran]:
        """Run once more, on every shard, what was chosen and what came close to it, where there is such."""
        ran = []
        for s, c in enumerate(chosen):
            shard = now.shards[s]
            room_bytes, close_us = now.room_bytes(shard.host, budget_bytes), (1 + _CLOSE) * time_us(shard, c)
            rivals = [
                other
                for other in serving(now, shard)
                if (s, other) in self.costs
                if time_us(shard, other) <= close_us and size_bytes(shard, other) <= room_bytes
            ]
            for other in rivals if len(rivals) > 1 else []:
                if (s, other) not in self._twice and self._may_run(now, s, other, kept=0.0):
                    self._twice.add((s, other))
                    ran.append(self._ran(s, other))
        return ran

    def _ran(self, s: int, c: int) -> Ran:
        cost = self._run(s, c)
        if (s, c) in self.costs:
            cost = _least(self.costs[s, c], cost)
        self.costs[s, c] = cost
        return Ran(s, c, _known(self._problem, s, c), cost)


def _least(first: Cost, second: Cost) -> Cost:
    """Merge two runs: the least times, and the most bytes."""

    def least(a: Figure | None, b: Figure | None) -> Figure | None:
        return a if a is None or b is None or a.expected <= b.expected else b

    names = ("read_ns", "write_ns", "scan_ns", "pause_us")
    times: dict[str, Any] = {name: least(getattr(first, name), getattr(second, name)) for name in names}
    peak_bytes = max(first.peak_bytes, second.peak_bytes, key=lambda figure: figure.expected)
    return replace(first, **times, rebuild_us=min(first.rebuild_us, second.rebuild_us), peak_bytes=peak_bytes)


def _is_better(problem: IndexProblem, s: int, c: int, than: int) -> bool:
    """Return whether a candidate is quicker and no larger: whatever the budget, it takes the other one's place."""
    shard = problem.shards[s]
    if refusal(problem, shard, c) is not None or not _known(problem, s, than).measured:
        return False
    return time_us(shard, c) < time_us(shard, than) and size_bytes(shard, c) <= size_bytes(shard, than)


def _may_make_room(problem: IndexProblem, plan: IndexPlan) -> list[tuple[int, int]]:
    """Candidates that may take less than is known on shards of the host that lacks memory, if that may be enough."""
    lacking = plan.infeasibility
    found, least_bytes, room_bytes = [], 0.0, 0
    for s, shard in enumerate(problem.shards):
        if lacking is None or problem.hosts[shard.host].name != lacking.where:
            continue
        room_bytes = problem.room_bytes(shard.host, plan.budget_bytes)
        costs = {c: _known(problem, s, c) for c in serving(problem, shard)}
        known_bytes = min(size_bytes(shard, c) for c in costs)
        least_bytes += min(map(_least_bytes, costs.values()))
        open_ = [c for c, cost in costs.items() if not cost.measured and _least_bytes(cost) < known_bytes]
        if open_:
            found.append((s, min(open_, key=lambda c: costs[c].peak_bytes.expected)))
    return found if least_bytes <= room_bytes else []


def _least_bytes(cost: Cost) -> float:
    figure = cost.peak_bytes
    return figure.expected if figure.lower is None else figure.lower


def _known(problem: IndexProblem, s: int, c: int) -> Cost:
    cost = problem.shards[s].costs[c]
    assert cost is not None, "refused candidates are not run"
    return cost
