"""The independent checker of memory plans: replays every stage against the accounting, blind to the formulations.

Let m_i be the bytes of forward result i, S[t] the results on the device when stage t starts, keep[t] those that stay
into the next one, L_j the live inputs of forward operator j, D the needs of the chosen backward implementation, G_t the
gradients and fixed bytes of stage t, F_t the bytes of offloaded results on their way in either direction. What backward
k reads, stage k keeps, or computes and leaves intact: every i in D is in keep[k] or computed in stage k.
The step fits a budget B when, in every stage t,

- just before forward j, computed or not:
    G_t + F_t + sum(m_i, i in S[t], i >= j) + sum(m_i, i in keep[t], i < j) + sum(m_i, i in D - keep[t], i < j) <= B
- while forward j runs:
    G_t + F_t + workspace + m_j + sum(m_i, i in L_j) + sum(m_i, i in S[t], i > j)
        + sum(m_i, i in keep[t] - L_j, i < j) + sum(m_i, i in D - keep[t], i < j) <= B
- while backward k = t runs:
    workspace + live + fixed + output + F_t + sum(m_i, i in D) + sum(m_i, i in keep[t] - D) <= B

Source: MONeT, [Shah23] equations 4.1 to 4.3 and 4.12 to 4.16, and the accounting of its published
schedules. Offload extends it by the rule of :mod:`loadmaster.models.memory.links`: in the forward pass F_t is the bytes
that the rule counts while the operator at hand runs; waiting for a copy is a stall, and what results sent cost a
compiled graph is time of the step too.

Violations are reported in words; a plan with any is a bug report, never an answer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.documents import expect_problem
from loadmaster.models.memory.links import HostTraffic, Start
from loadmaster.models.memory.plan import Compute, MemoryPlan, Schedule, Stage
from loadmaster.models.memory.problem import BackwardImplementation, BackwardOperator, ForwardOperator, MemoryProblem
from loadmaster.models.memory.verdict import Event, MemoryCheck, Moment
from loadmaster.solvers.program import IntArray

__all__ = ["Event", "MemoryCheck", "check", "check_plan"]


def check_plan(problem: MemoryProblem, plan: MemoryPlan) -> MemoryCheck:
    """Replay a plan under its own budget. ``InputError``: it belongs to another problem, or holds no schedule."""
    expect_problem(plan.problem_sha256, problem.sha256)
    if plan.schedule is None:
        raise InputError("status", plan.status, "holds no schedule to check", "Give a plan that was found feasible.")
    return check(problem, plan.schedule, plan.budget_bytes)


def check(problem: MemoryProblem, schedule: Schedule, budget_bytes: int) -> MemoryCheck:
    """Replay a schedule under a budget in bytes. Never raises for a wrong schedule: the verdict says what is wrong."""
    return _Replay(problem, schedule, budget_bytes).run()


class _Replay:
    """State of one replay: what is on the device, what travels, and the clock."""

    def __init__(self, problem: MemoryProblem, schedule: Schedule, budget_bytes: int) -> None:
        self.problem = problem
        self.schedule = schedule
        self.budget = budget_bytes
        self.bytes = problem.output_bytes
        self.count = len(problem.forward)
        self.violations: list[str] = []
        self.events: list[Event] = []
        self.clock_us = 0.0
        self.objective = 0.0
        self.spent_us = {"forward": 0.0, "recompute": 0.0, "backward": 0.0, "stall": 0.0, "cut": 0.0}
        self.peak_bytes = 0
        self.peak: Moment | None = None
        self.recomputed = 0
        self.traffic = HostTraffic(problem, schedule)

    def run(self) -> MemoryCheck:
        if len(self.schedule.stages) != self.problem.stage_count:
            self._wrong(f"{len(self.schedule.stages)} stages, but the problem has {self.problem.stage_count}")
        else:
            self._check_offload()
            stored: set[int] = set()
            for t, stage in enumerate(self.schedule.stages):
                stored = self._stage(t, stage, stored)
        beside_us = self.spent_us["stall"] + self.spent_us["cut"]
        return MemoryCheck(
            ok=not self.violations,
            violations=tuple(self.violations),
            peak_bytes=self.peak_bytes,
            peak_at=self._words(self.peak),
            peak=self.peak,
            objective=self.objective + (beside_us if self.problem.objective == "time" else 0.0),
            time_us=self.clock_us,
            forward_us=self.spent_us["forward"],
            recompute_us=self.spent_us["recompute"],
            backward_us=self.spent_us["backward"],
            stall_us=self.spent_us["stall"],
            recomputed=self.recomputed,
            offloaded_bytes=int(sum(self.bytes[i] for i in self.schedule.offload if i < self.count)),
            events=tuple(self.events),
            copies=tuple(self.traffic.copies),
            cut_us=self.spent_us["cut"],
        )

    def _wrong(self, text: str) -> None:
        self.violations.append(text)

    def _check_offload(self) -> None:
        link, offload = self.problem.host_link, self.schedule.offload
        fetched = [(t, f) for t, stage in enumerate(self.schedule.stages) for f in stage.fetches]
        if (offload or fetched) and link is None:
            self._wrong("the plan offloads, but the problem has no host_link")
            return
        if len(set(offload)) != len(offload):
            self._wrong("a result is offloaded twice")
        for i in offload:
            if i >= self.count or not self.problem.forward[i].offloadable:
                self._wrong(f"forward {i} is offloaded, but is not offloadable")
        gone_before = self.schedule.gone_before
        if gone_before and len(gone_before) != len(offload):
            self._wrong(f"{len(offload)} results are offloaded, but {len(gone_before)} are said to be gone")
        for i, gone in zip(offload, gone_before, strict=False):
            if i < self.count and not self.problem.last_readers[i] < gone <= self.count:
                self._wrong(f"forward {i} is to be gone before forward {gone}, but is read until later, or for longer")
        capacity = link.capacity_bytes if link is not None else None
        total = int(sum(self.bytes[i] for i in offload if i < self.count))
        if capacity is not None and total > capacity:
            self._wrong(f"offloads {total} bytes, host capacity is {capacity}")
        for t, f in fetched:
            if f.forward not in offload:
                self._wrong(f"stage {t} fetches forward {f.forward}, which was not offloaded")
            if not 1 <= f.issued_at <= t:
                self._wrong(f"stage {t} fetches forward {f.forward}, issued at stage {f.issued_at}: not in 1..{t}")

    def _stage(self, t: int, stage: Stage, stored: set[int]) -> set[int]:
        """Replay stage t from the results carried into it; returns what it keeps."""
        if t == 1:
            self._hold_up(self.traffic.before(self.count, self.clock_us))
        self.traffic.issue(t, self.clock_us)
        for f in stage.fetches:
            self._stall_until(self.traffic.arrive(t, f.forward))
            if f.forward in stored:
                self._wrong(f"stage {t} fetches forward {f.forward}, which is on the device already")
            if f.forward < self.count:
                stored = stored | {f.forward}
        keep = set(stage.keep)
        needs = self._needs(t, stage)
        resident = _Resident(self, t, stored, keep, needs)
        available = self._computes(t, stage, stored, resident)
        for i in sorted(keep - available):
            self._wrong(f"stage {t} keeps forward {i}, which is neither stored, computed nor left intact")
        if t > 0:
            self._backward(t, stage, keep, available)
        return keep

    def _needs(self, t: int, stage: Stage) -> frozenset[int]:
        choice = self._backward_choice(t, stage)
        return frozenset(choice.needs) if choice is not None else frozenset()

    def _backward_choice(self, t: int, stage: Stage) -> BackwardImplementation | None:
        if t == 0:
            if stage.implementation is not None:
                self._wrong("stage 0 runs no backward operator")
            return None
        choices = self.problem.backward[t - 1].implementations
        if stage.implementation is None or not 0 <= stage.implementation < len(choices):
            self._wrong(f"backward {t} has no implementation {stage.implementation}")
            return None
        return choices[stage.implementation]

    def _computes(self, t: int, stage: Stage, stored: set[int], resident: _Resident) -> set[int]:
        """Run the stage's forward operators; returns what is intact on the device afterwards."""
        intact = set(stored)
        computed: set[int] = set()
        in_place: dict[int, bool] = {}
        previous = -1
        for c in stage.computes:
            j = c.forward
            if j >= self.count or j <= previous:
                self._wrong(f"stage {t} computes forward {j} after {previous}: ids must exist and ascend")
                return intact
            stall = resident.before(previous + 1, j)
            previous = j
            operator = self.problem.forward[j]
            where = f"stage {t}: {operator.label}"
            choices = operator.implementations if t == 0 else operator.recompute_implementations
            if not 0 <= c.implementation < len(choices):
                self._wrong(f"{where} has no implementation {c.implementation}")
                return intact
            if t > 0 and not operator.recomputable:
                self._wrong(f"{where} must not be recomputed")
            for i in operator.inputs:
                if i not in intact:
                    self._wrong(f"{where} reads forward {i}, which is not on the device")
            parent = operator.encodes
            if parent is not None and parent not in computed:
                self._wrong(f"{where} encodes forward {parent}, which this stage does not compute")
            chosen = choices[c.implementation]
            time_us, workspace = chosen.time_us, chosen.workspace_bytes
            self.objective += self.problem.cost(chosen)
            if parent is not None and operator.in_place is not None and c.in_place != in_place.get(parent, False):
                self._wrong(f"{where} must run in place exactly when forward {parent} does")
            if c.in_place:
                if operator.in_place is None:
                    self._wrong(f"{where} cannot run in place")
                else:
                    time_us += operator.in_place.time_delta_us
                    workspace += operator.in_place.workspace_delta_bytes
                    self.objective += self.problem.in_place_cost(operator.in_place)
                    if parent is None:
                        intact.discard(operator.in_place.overwrites)
            in_place[j] = c.in_place
            resident.running(c, workspace)
            kind = "forward" if t == 0 else "recompute"
            self._advance(t, kind, operator, time_us, resident.last_bytes, stall)
            computed.add(j)
            intact.add(j)
            self.recomputed += t > 0
        resident.before(previous + 1, self.count - 1)
        if t == 0:
            missing = [f.id for f in self.problem.forward if f.encodes is None and f.id not in computed]
            if missing:
                self._wrong(f"the forward pass does not compute forward {missing[0]}")
            for i in self.schedule.offload:
                if i in stage.keep:
                    self._wrong(f"forward {i} is both kept and offloaded")
                if i not in intact:
                    self._wrong(f"forward {i} is offloaded, but is overwritten in the forward pass")
        return intact

    def _backward(self, t: int, stage: Stage, keep: set[int], available: set[int]) -> None:
        choice = self._backward_choice(t, stage)
        if choice is None:
            return
        operator = self.problem.backward[t - 1]
        where = operator.label
        computed = {c.forward for c in stage.computes}
        for i in choice.needs:
            if i not in available:
                self._wrong(f"{where} reads forward {i}, which is not on the device")
            elif i not in keep and i not in computed:
                self._wrong(f"{where} reads forward {i}, which stage {t} neither keeps nor computes")
        needs = set(choice.needs)
        resident = (
            choice.workspace_bytes
            + operator.live_bytes
            + operator.fixed_bytes
            + operator.output_bytes
            + self.traffic.incoming_bytes
            + int(self.bytes[[i for i in needs | keep if i < self.count]].sum())
        )
        assert stage.implementation is not None  # the choice was found
        self._account(resident, Moment(t, "backward", t, stage.implementation, False, self.traffic.incoming_bytes))
        self.objective += self.problem.cost(choice)
        self._advance(t, "backward", operator, choice.time_us, resident, 0.0)

    def _account(self, resident: int, moment: Moment) -> None:
        if resident > self.peak_bytes:
            self.peak_bytes, self.peak = resident, moment
        if resident > self.budget:
            over = resident - self.budget
            self._wrong(f"{self._words(moment)}: {resident} bytes, {over} over the budget of {self.budget}")

    def _words(self, moment: Moment | None) -> str:
        if moment is None:
            return "nothing"
        if moment.what == "backward":
            return self.problem.backward[moment.operator - 1].label
        operator = self.problem.forward[moment.operator]
        if moment.what == "forward":
            return f"stage {moment.stage}: {operator.label}"
        known = operator.words != operator.op
        return f"stage {moment.stage}: before {operator.label if known else f'forward {operator.id}'}"

    def _advance(
        self,
        t: int,
        what: str,
        operator: ForwardOperator | BackwardOperator,
        time_us: float,
        resident: int,
        stall_us: float,
    ) -> None:
        place = (operator.module, operator.source)
        self.events.append(Event(t, what, operator.id, operator.op, self.clock_us, time_us, resident, stall_us, *place))
        self.clock_us += time_us
        self.spent_us[what] += time_us

    def _hold_up(self, start: Start) -> float:
        """Let the clock go on until an operator may start; returns the stall in it."""
        self.clock_us += start.cut_us
        self.spent_us["cut"] += start.cut_us
        return self._stall_until(start.start_us)

    def _stall_until(self, time_us: float) -> float:
        stall = max(0.0, time_us - self.clock_us)
        self.clock_us += stall
        self.spent_us["stall"] += stall
        return stall


class _Resident:
    """Bytes resident during the forward operators of one stage, from prefix sums over operator ids."""

    def __init__(self, replay: _Replay, t: int, stored: set[int], keep: set[int], needs: frozenset[int]) -> None:
        self.replay, self.t = replay, t
        count, sizes = replay.count, replay.bytes
        ids = np.arange(count)
        in_stored = _mask(stored, count) * sizes
        held = (_mask(keep, count) + _mask(needs - keep, count)) * sizes
        self.keep = {i for i in keep if i < count}
        # after[j]: bytes of stored results with id >= j; before_[j]: of kept and needed ones with id < j.
        self.after = np.concatenate((np.cumsum(in_stored[::-1])[::-1], [0]))
        self.before_ = np.concatenate(([0], np.cumsum(held)))
        self.gradients = replay.problem.gradient_bytes(t)
        self.profile: IntArray = self.gradients + self.after[ids] + self.before_[ids]
        self.last_bytes = 0

    def before(self, first: int, last: int) -> float:
        """Account the moments just before forward first..last, whether or not those are computed; returns the stall
        (us). Results that must be gone by then may still be on their way."""
        if first > last:
            return 0.0
        if self.t > 0 or not self.replay.schedule.offload:
            window = self.profile[first : last + 1]
            j = first + int(np.argmax(window))
            self._account(int(self.profile[j]), "before", Compute(j))
            return 0.0
        stall = 0.0
        for j in range(first, last + 1):
            start = self.replay.traffic.before(j, self.replay.clock_us)
            for i in start.stuck[:1]:
                self.replay._wrong(f"forward {j} waits for forward {i} to be gone, which is not queued by then")
            stall += self.replay._hold_up(start)
            self._account(int(self.profile[j]), "before", Compute(j))
        return stall

    def running(self, compute: Compute, workspace: int) -> None:
        """Account a forward operator while it runs."""
        j = compute.forward
        operator = self.replay.problem.forward[j]
        sizes = self.replay.bytes
        live_kept = int(sum(sizes[i] for i in set(operator.live_inputs) & self.keep))
        resident = (
            self.gradients
            + workspace
            + operator.output_bytes
            + operator.live_bytes
            + int(self.after[j + 1])
            + int(self.before_[j])
            - live_kept
        )
        self._account(resident, "forward", compute)

    def _account(self, resident: int, what: Literal["before", "forward"], c: Compute) -> None:
        travelling = self.replay.traffic.leaving_bytes + self.replay.traffic.incoming_bytes
        self.last_bytes = resident + travelling
        moment = Moment(self.t, what, c.forward, c.implementation, c.in_place, travelling)
        self.replay._account(self.last_bytes, moment)


def _mask(ids: set[int] | frozenset[int], count: int) -> IntArray:
    mask = np.zeros(count, dtype=np.int64)
    mask[[i for i in ids if i < count]] = 1
    return mask
