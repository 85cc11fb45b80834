"""The point of the program that a schedule gives: counts, and what its moves and updates have done by the end of each
slot of its steady step. That it breaks no row is the proof of the bound, carried out."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from loadmaster.models.training.formulation import Formulated
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule
from loadmaster.models.training.problem import Group, TrainingProblem
from loadmaster.models.training.replay import Timeline
from loadmaster.models.training.runs import Runs
from loadmaster.models.training.ways import Way, ways
from loadmaster.solvers.program import FloatArray

CLOSE = 1e-6
Interval = tuple[float, float]


class Averages:
    """A schedule whose steps are all the same, in the columns of a program."""

    def __init__(self, problem: TrainingProblem, schedule: Schedule, timeline: Timeline, runs: Runs) -> None:
        self.problem, self.schedule, self.timeline, self.runs = problem, schedule, timeline, runs
        self.phases = Phases(problem)
        self.step_us = timeline.step_us
        # The end of each phase, with the updates on the device after it.
        self.ends = list(timeline.ends_us)
        for update in timeline.device_updates:
            after = schedule.groups[update.group].update_after
            assert after is not None
            p = after % len(self.phases)
            self.ends[p] = max(self.ends[p], update.end_us)

    @property
    def is_steady(self) -> bool:
        """True if every step takes the same time: not of steps that take turns, or do not repeat."""
        return self.timeline.steps < 64 and abs(self.ends[-1] - self.step_us) <= CLOSE

    def end(self, phase: int) -> float:
        lap, p = divmod(phase, len(self.phases))
        return self.ends[p] + lap * self.step_us

    def start(self, phase: int) -> float:
        lap, p = divmod(phase, len(self.phases))
        return self.timeline.starts_us[p] + lap * self.step_us

    def point(self, formulated: Formulated) -> FloatArray:
        """Columns of the program, by their names."""
        program, runs = formulated.program, self.runs
        values = np.zeros(program.column_count)

        def put(name: str, index: tuple[int, ...], value: float) -> None:
            block = program.block(name)
            values[int(block.indices[index]) if index else block.start] += value

        def put_flow(name: str, first: int, interval: Interval, earliest: int) -> None:
            # What takes no time is at the boundary of slots: it belongs to those after its position.
            block = program.block(name)
            for k, column in enumerate(block.indices.tolist()):
                if first + k >= runs.slot(earliest):
                    values[column] += _share(interval, self.end(runs.last_phase(first + k)))

        names = {block.name for block in program.column_blocks}
        for s in range(runs.slots):
            put("tau", (s,), (self.end(runs.last_phase(s)) - self.end(runs.last_phase(s - 1))) / formulated.unit_us)
        for a, run in enumerate(runs.layers):
            for layer in run.layers:
                put(f"y[{a}]", (self.schedule.points[layer],), 1)
            if len(run.layers) > 1:
                put(f"first[{a}]", (self.schedule.points[run.layers[0]],), 1)
                put(f"last[{a}]", (self.schedule.points[run.layers[-1]],), 1)
        on_host = {
            self.problem.groups[g].layers[0] for g, plan in enumerate(self.schedule.groups) if plan.update == "host"
        }
        for a, run in enumerate(runs.layers):
            put("turns", (a,), len(on_host.intersection(run.layers)))
        for r, members in enumerate(runs.groups):
            ready, complete = runs.updates_from(r), runs.last_gradients(r)
            uses = runs.uses(r)
            for g in members.groups:
                group, plan = self.problem.groups[g], self.schedule.groups[g]
                way = way_of(group, plan)
                w = ways(group, has_disk=True).index(way)
                put(f"x[{r}]", (w,), 1)
                for name, layer in (("first_way", members.layers[0]), ("last_way", members.layers[-1])):
                    if f"{name}[{r}]" in names and group.layers == (layer,):
                        put(f"{name}[{r}]", (w,), 1)
                if plan.update_after is not None:
                    after = plan.update_after
                    at = self.end(after)
                    put_flow(f"updates[{r},{w}]", runs.slot(ready.first), (at, at), after)
                    if way.has_stay and plan.update_stay is not None:
                        first, load_at = runs.slot(ready.first + 1), plan.update_stay.load_at
                        put_flow(f"loads[{r},{w}]", first - runs.slots, self._stay_load(g, after), load_at)
                        put_flow(f"stores[{r},{w}]", first, self._from("to host", g, at), after + 1)
                    made = f"made[{r},{int(way.weights == 'device')}]"
                    if made in names and after >= runs.last_phase(runs.slot(ready.last)):
                        put(made, (), 1)
                if way.update == "host":
                    last = self.phases.last_gradient(group)
                    sent = self._from("to host", g, self.end(last))
                    first = runs.slot(complete.first + 1)
                    put_flow(f"gradients[{r}]", first, sent, last + 1)
                    if self.problem.clip_grad_norm:
                        first = max(first, runs.slot(ready.first))
                    put_flow(f"host_updates[{r}]", first, self._host_update(g, sent[1]), last + 1)
                    if plan.copy_load_at is not None:
                        put_flow(
                            f"copies[{r}]", first, self._until(g, len(self.phases) + group.layers[0]), plan.copy_load_at
                        )
                if way.weights == "streamed":
                    for i in range(len(uses)):
                        needed = [*self.phases.uses[g], len(self.phases) + self.phases.uses[g][0]][i + 1]
                        if f"used[{r}]" in names and self._is_here(plan, runs.last_phase(runs.slot(uses[i].last))):
                            put(f"used[{r}]", (i,), 1)
                        if f"streamed[{r},{i}]" in names and self._begins(plan, g, needed):
                            first = runs.slot(uses[i].first + 1)
                            put_flow(f"streamed[{r},{i}]", first, self._until(g, needed), self.phases.uses[g][i] + 1)
                            if f"away[{r},{i}]" in names:
                                put(f"away[{r},{i}]", (), 1)
        return values

    def _is_here(self, plan: GroupPlan, phase: int) -> bool:
        count = len(self.phases)
        return any(any(s.load_at <= p < s.gone_at for p in (phase, phase + count)) for s in plan.stays)

    def _begins(self, plan: GroupPlan, g: int, needed: int) -> bool:
        """Return whether a use is the first of its stay."""
        count, uses = len(self.phases), self.phases.uses[g]
        for stay in plan.stays:
            at = bisect_left(uses, stay.load_at)
            first = uses[at] if at < len(uses) else count + uses[0]
            if first % count == needed % count:
                return True
        return False

    def _moves(self, direction: str, g: int, *, copy: bool) -> list[Interval]:
        return [
            (c.start_us, c.end_us)
            for c in self.timeline.copies
            if (c.direction, c.group) == (direction, g) and (c.what == "copy") is copy
        ]

    def _from(self, direction: str, g: int, earliest: float) -> Interval:
        """The first move of a group that starts no earlier."""
        (move,) = self._moves(direction, g, copy=False)
        return self._later(move, math.ceil((earliest - move[0] - CLOSE) / self.step_us))

    def _until(self, g: int, needed: int) -> Interval:
        """The last copy of a group that has come before a phase."""
        found = [self._before(move, self.start(needed)) for move in self._moves("from host", g, copy=True)]
        return max(found, key=lambda move: move[1])

    def _stay_load(self, g: int, after: int) -> Interval:
        (move,) = self._moves("from host", g, copy=False)
        (update,) = (u for u in self.timeline.device_updates if u.group == g)
        return self._before(move, update.start_us + after // len(self.phases) * self.step_us)

    def _host_update(self, g: int, earliest: float) -> Interval:
        (update,) = (u for u in self.timeline.host_updates if u.group == g)
        return self._later(
            (update.start_us, update.end_us), math.ceil((earliest - update.start_us - CLOSE) / self.step_us)
        )

    def _before(self, move: Interval, deadline: float) -> Interval:
        return self._later(move, math.floor((deadline - move[1] + CLOSE) / self.step_us))

    def _later(self, move: Interval, steps: int) -> Interval:
        return move[0] + steps * self.step_us, move[1] + steps * self.step_us


def _share(interval: Interval, until: float) -> float:
    start, end = interval
    if end - start <= 1e-12:
        return float(until >= end - CLOSE)
    return min(max((until - start) / (end - start), 0.0), 1.0)


def way_of(group: Group, plan: GroupPlan) -> Way:
    """Return the way of a group in a plan. State of no bytes is the same on the host and on the device."""
    places = (plan.weights, plan.state, plan.update)
    found = [way for way in ways(group, has_disk=True) if (way.weights, way.state, way.update) == places]
    return found[0] if found else ways(group)[0]
