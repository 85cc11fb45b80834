"""What MONeT's program decides: its columns, and the way between its points and schedules.

The rows, and what the columns mean, are in :mod:`loadmaster.models.memory.monet`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from loadmaster.models.memory.choices import (
    ByteScale,
    Choice,
    backward_choices,
    forward_choices,
    offered_backward,
    offered_forward,
    stand_in,
)
from loadmaster.models.memory.dead_code import without_dead_code
from loadmaster.models.memory.liveness import BoolArray, Liveness, fits_alone
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder


class MonetColumns:
    """Columns of a program that is being built, and what a point of it says."""

    program: Program

    def __init__(self, problem: MemoryProblem, budget_bytes: int, live: Liveness, boundaries: Sequence[int]) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self._stages, self._count = problem.stage_count, len(problem.forward)
        self._live = live
        self._scale = ByteScale(problem, budget_bytes, terms=self._count + 2)
        self._units = np.array([self._scale.units(int(m)) for m in problem.output_bytes])
        self._builder = ProgramBuilder()
        self._boundaries = tuple(boundaries)
        self._columns()

    @cached_property
    def _choices(self) -> tuple[list[tuple[Choice, ...]], list[tuple[Choice, ...]]]:
        """Undominated implementations of every forward operator, in the forward pass and when recomputed."""
        ids = range(self._count)
        return (
            [forward_choices(self.problem, i, recompute=False) for i in ids],
            [forward_choices(self.problem, i, recompute=True) for i in ids],
        )

    @cached_property
    def _backward_choices(self) -> list[tuple[Choice, ...]]:
        return [backward_choices(self.problem, k) for k in range(1, self._stages)]

    def _columns(self) -> None:
        stages, count, forward = self._stages, self._count, self.problem.forward
        b = self._builder
        always = np.zeros((stages, count), dtype=bool)
        always[0] = [f.encodes is None for f in forward]
        self._may_compute = (self._live.compute & fits_alone(self.problem, self.budget_bytes)) | always
        # With one implementation its cost is on r itself, else on d.
        cost = np.zeros((stages, count))
        for i in range(count):
            for part, choices in ((slice(0, 1), self._choices[0][i]), (slice(1, None), self._choices[1][i])):
                cost[part, i] = choices[0].cost if len(choices) == 1 else 0.0
        self.compute = b.columns(
            "compute", (stages, count), lower=always, upper=self._may_compute, cost=cost, integer=True
        )
        self.keep = b.columns("keep", (stages, count), upper=self._live.keep, integer=True)
        picks = [
            (t, i, c)
            for t, i in np.argwhere(self._may_compute).tolist()
            if len(self._choices[min(t, 1)][i]) > 1
            for c in self._choices[min(t, 1)][i]
        ]
        self._pick_stage, self._pick_operator = ints(p[0] for p in picks), ints(p[1] for p in picks)
        self._picks = [p[2] for p in picks]
        self.choice = b.columns("choice", len(picks), upper=1, integer=True, cost=[c.cost for c in self._picks])
        self._pick_at = {(t, i, c.index): int(column) for (t, i, c), column in zip(picks, self.choice, strict=True)}
        self.in_place, self._in_place_at = self._in_place_columns("in_place", encoded=False)
        self.encoded_in_place, self._encoded_in_place_at = self._in_place_columns("encoded_in_place", encoded=True)
        ways = [(k, c) for k, choices in enumerate(self._backward_choices, start=1) for c in choices]
        self._ways = ways
        self.backward = b.columns("backward", len(ways), upper=1, integer=True, cost=[c.cost for _, c in ways])
        self._way_at = {(k, c.index): int(column) for (k, c), column in zip(ways, self.backward, strict=True)}
        needs = sorted({(k, i) for k, c in ways for i in c.needs})
        self.need = b.columns("need", len(needs), upper=[float(self._may_compute[pair]) for pair in needs])
        self._need_at = {pair: int(column) for pair, column in zip(needs, self.need, strict=True)}
        self.resident = b.columns("resident", (stages, count), upper=self._room[:, None])
        self.again = b.columns("again", (len(self._boundaries), count), upper=1)

    @cached_property
    def _room(self) -> FloatArray:
        """What stage t may hold beside G_t while it computes forward operators [stages]."""
        return np.array(
            [self._scale.room(self.budget_bytes - self.problem.gradient_bytes(t)) for t in range(self._stages)]
        )

    def _in_place_columns(self, name: str, *, encoded: bool) -> tuple[IntArray, IntArray]:
        """Columns for in-place runs and where they are: [stages, V], -1 where there is none."""
        at = np.full((self._stages, self._count), -1, dtype=np.int64)
        places, cost = [], []
        for i, f in enumerate(self.problem.forward):
            if f.in_place is not None and (f.encodes is not None) == encoded:
                stages = np.flatnonzero(self._may_compute[:, i])
                places.append((stages, i))
                cost += [self.problem.in_place_cost(f.in_place)] * len(stages)
        columns = self._builder.columns(name, len(cost), upper=1, cost=cost, integer=not encoded)
        position = 0
        for stages, i in places:
            at[stages, i] = columns[position : position + len(stages)]
            position += len(stages)
        return columns, at

    def schedule(self, values: FloatArray) -> Schedule:
        """The schedule of an integral point [columns], without what it does for nothing."""
        on = values > 0.5
        picked = {(t, i): index for (t, i, index), column in self._pick_at.items() if on[column]}
        ways = {k: c.index for (k, c), chosen in zip(self._ways, on[self.backward], strict=True) if chosen}
        stages = []
        for t in range(self._stages):
            computes = []
            for i in np.flatnonzero(on[self.compute[t]]).tolist():
                index = picked.get((t, i), self._choices[min(t, 1)][i][0].index)
                computes.append(Compute(i, index, self._runs_in_place(on, t, i)))
            keep = tuple(np.flatnonzero(on[self.keep[t]]).tolist())
            stages.append(Stage(tuple(computes), ways.get(t), keep))
        return without_dead_code(self.problem, Schedule(tuple(stages)))

    def _runs_in_place(self, on: BoolArray, t: int, i: int) -> bool:
        operator = self.problem.forward[i]
        runner = i if operator.encodes is None else operator.encodes
        column = self._in_place_at[t, runner]
        return operator.in_place is not None and column >= 0 and bool(on[column])

    def start(self, schedule: Schedule) -> FloatArray:
        """The point [columns] of a schedule that stays inside the program, to start a solver from.

        Implementations left out as dominated are replaced by ones that dominate them; what the program fixes at zero
        is left out, as nothing in it needs that. Feasible if the schedule passes the checker and recomputes nothing
        that the caller ruled out.
        """
        values = np.zeros(self.program.column_count)
        for t, stage in enumerate(schedule.stages):
            values[self.keep[t, [i for i in stage.keep if self._live.keep[t, i]]]] = 1.0
            for c in stage.computes:
                if not self._may_compute[t, c.forward]:
                    continue
                values[self.compute[t, c.forward]] = 1.0
                choices = self._choices[min(t, 1)][c.forward]
                if len(choices) > 1:
                    given = offered_forward(self.problem, c.forward, recompute=t > 0)[c.implementation]
                    values[self._pick_at[t, c.forward, stand_in(given, choices).index]] = 1.0
                for at in (self._in_place_at, self._encoded_in_place_at):
                    if c.in_place and at[t, c.forward] >= 0:
                        values[at[t, c.forward]] = 1.0
            if t > 0 and stage.implementation is not None:
                given = offered_backward(self.problem, t)[stage.implementation]
                way = stand_in(given, self._backward_choices[t - 1])
                values[self._way_at[t, way.index]] = 1.0
                for i in way.needs:
                    values[self._need_at[t, i]] = 1.0 - values[self.keep[t, i]]
        self._fill_resident(values)
        for row, b in enumerate(self._boundaries):
            values[self.again[row]] = values[self.compute[b:]].max(axis=0)
        return values

    def _fill_resident(self, values: FloatArray) -> None:
        """(4.15), solved for a."""
        kept = self._units * values[self.keep]
        needed = np.zeros_like(kept)
        for (k, i), column in self._need_at.items():
            needed[k, i] = self._units[i] * values[column]
        change = kept + needed
        change[1:] -= kept[:-1]
        values[self.resident[1:, 0]] = kept[:-1].sum(axis=1)
        values[self.resident[:, 1:]] = values[self.resident[:, :1]] + np.cumsum(change, axis=1)[:, :-1]


def ints(values: Iterable[int]) -> IntArray:
    """An index array."""
    return np.array(list(values), dtype=np.int64)
