"""The way between points of MONeT's program and schedules.

What the columns mean is in :mod:`loadmaster.models.memory.monet`, which builds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory.choices import dominating, offered_backward, offered_forward
from loadmaster.models.memory.dead_code import without_dead_code
from loadmaster.models.memory.liveness import BoolArray
from loadmaster.models.memory.monet_columns import MonetColumns
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.verdict import Moment
from loadmaster.solvers.program import FloatArray, Program


@dataclass(frozen=True)
class Monet:
    """One formulation: its program, whose objective is the checker's, in the problem's unit, and its columns."""

    program: Program
    columns: MonetColumns

    def schedule(self, values: FloatArray) -> Schedule:
        """The schedule of an integral point [columns], without what it does for nothing."""
        c = self.columns
        on = values > 0.5
        picked = {(t, i): index for (t, i, index), column in c.pick_at.items() if on[column]}
        ways = {k: way.index for (k, way), chosen in zip(c.ways, on[c.backward], strict=True) if chosen}
        stages = []
        for t in range(c.stages):
            computes = []
            for i in np.flatnonzero(on[c.compute[t]]).tolist():
                index = picked.get((t, i), c.choices[min(t, 1)][i][0].index)
                computes.append(Compute(i, index, self._runs_in_place(on, t, i)))
            keep = tuple(np.flatnonzero(on[c.keep[t]]).tolist())
            stages.append(Stage(tuple(computes), ways.get(t), keep))
        return without_dead_code(c.problem, Schedule(tuple(stages)))

    def cover(self, schedule: Schedule, moment: Moment) -> tuple[FloatArray, float]:
        """A row, as coefficients [columns] and a lower bound, that cuts off what the schedule holds at ``moment``.

        No plan violates it, and every point does whose schedule holds then what this one does, which is more than the
        budget. What is there is named by the columns at one, and what would be there if something did not save room by
        those at zero. At least one of them is otherwise.
        """
        there, away = self._holding(schedule, moment)
        coefficients = np.zeros(self.program.column_count)
        coefficients[there] = -1.0
        coefficients[away] = 1.0
        return coefficients, 1.0 - len(there)

    def _holding(self, schedule: Schedule, moment: Moment) -> tuple[list[int], list[int]]:
        """The columns at one, and at zero, that what is resident at a moment follows from."""
        c, t, j = self.columns, moment.stage, moment.operator
        keep = set(schedule.stages[t].keep)
        stored = set(schedule.stages[t - 1].keep) if t > 0 else set()
        way = schedule.stages[t].implementation
        needs: set[int] = set()
        there: list[int] = []
        away: list[int] = []
        if t > 0 and way is not None:
            needs = set(c.problem.backward[t - 1].implementations[way].needs)
            there.append(c.way_at[t, way])
        if moment.what == "backward":
            there += [int(c.keep[t, i]) for i in keep - needs]
            return there, away
        operator = c.problem.forward[j]
        live: set[int] = set()
        if moment.what == "forward":
            live = set(operator.live_inputs)
            there.append(int(c.compute[t, j]))
            if len(c.choices[min(t, 1)][j]) > 1:
                there.append(c.pick_at[t, j, moment.implementation])
            at = c.in_place_at if operator.encodes is None else c.encoded_in_place_at
            if operator.in_place is not None and at[t, j] >= 0:
                grows = operator.in_place.workspace_delta_bytes > 0
                if moment.in_place == grows:
                    (there if grows else away).append(int(at[t, j]))
        there += [int(c.keep[t, i]) for i in keep - needs - live if i < j]
        # Live inputs are counted anyway, and once more where the backward operator reads what is not kept.
        away += [int(c.keep[t, i]) for i in (needs & live) - keep if i < j]
        there += [int(c.keep[t - 1, i]) for i in stored if i > j or (i == j and moment.what == "before")]
        return there, away

    def _runs_in_place(self, on: BoolArray, t: int, i: int) -> bool:
        c, operator = self.columns, self.columns.problem.forward[i]
        runner = i if operator.encodes is None else operator.encodes
        column = c.in_place_at[t, runner]
        return operator.in_place is not None and column >= 0 and bool(on[column])

    def start(self, schedule: Schedule) -> FloatArray:
        """The point [columns] of a schedule that stays inside the program, to start a solver from.

        Implementations left out as dominated are replaced by ones that dominate them; what the program fixes at zero is
        left out, as nothing in it needs that. Feasible if the schedule passes the checker and recomputes nothing that
        the caller ruled out.
        """
        c = self.columns
        values = np.zeros(self.program.column_count)
        for t, stage in enumerate(schedule.stages):
            values[c.keep[t, [i for i in stage.keep if c.live.keep[t, i]]]] = 1.0
            for run in stage.computes:
                i = run.forward
                if not c.may_compute[t, i]:
                    continue
                values[c.compute[t, i]] = 1.0
                choices = c.choices[min(t, 1)][i]
                if len(choices) > 1:
                    given = offered_forward(c.problem, i, recompute=t > 0)[run.implementation]
                    values[c.pick_at[t, i, dominating(given, choices).index]] = 1.0
                for at in (c.in_place_at, c.encoded_in_place_at):
                    if run.in_place and at[t, i] >= 0:
                        values[at[t, i]] = 1.0
            if t > 0 and stage.implementation is not None:
                given = offered_backward(c.problem, t)[stage.implementation]
                way = dominating(given, c.backward_choices[t - 1])
                values[c.way_at[t, way.index]] = 1.0
                for i in way.needs:
                    values[c.need_at[t, i]] = 1.0 - values[c.keep[t, i]]
        self._fill_resident(values)
        for row, b in enumerate(c.boundaries):
            values[c.again[row]] = values[c.compute[b:]].max(axis=0)
        return values

    def _fill_resident(self, values: FloatArray) -> None:
        """Fill in a, which (4.15) gives."""
        c = self.columns
        kept = c.units * values[c.keep]
        needed = np.zeros_like(kept)
        for (k, i), column in c.need_at.items():
            needed[k, i] = c.units[i] * values[column]
        change = kept + needed
        change[1:] -= kept[:-1]
        values[c.resident[1:, 0]] = kept[:-1].sum(axis=1)
        values[c.resident[:, 1:]] = values[c.resident[:, :1]] + np.cumsum(change, axis=1)[:, :-1]
