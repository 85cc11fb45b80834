"""Columns of MONeT's program, and the figures that its rows are written from.

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
)
from loadmaster.models.memory.liveness import Liveness, fits_alone
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray, ProgramBuilder


class MonetColumns:
    """The columns of one program.

    Attributes:
        compute, keep, resident: of r[t,i], s[t+1,i] and a [stages, V].
        choice, pick_at: of d; ``pick_at`` by stage, operator and implementation.
        in_place_at, encoded_in_place_at: of q and y, -1 for none [stages, V].
        backward, way_at: of h, one for each of ``ways``; ``way_at`` by backward operator and implementation.
        need, need_at: of w; ``need_at`` by backward operator and result.
        again: of z [boundaries, V].
        may_compute: where r is not fixed at zero [stages, V].
    """

    def __init__(
        self,
        builder: ProgramBuilder,
        problem: MemoryProblem,
        budget_bytes: int,
        live: Liveness,
        boundaries: Sequence[int],
    ) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.stages, self.count = problem.stage_count, len(problem.forward)
        self.live = live
        self.scale = ByteScale(problem, budget_bytes, terms=self.count + 2, relaxes=True)
        self.units = np.array([self.scale.units(int(m)) for m in problem.output_bytes])
        self.boundaries = tuple(boundaries)
        self._add(builder)

    @cached_property
    def choices(self) -> tuple[list[tuple[Choice, ...]], list[tuple[Choice, ...]]]:
        """Undominated implementations of every forward operator, in the forward pass and when recomputed."""
        ids = range(self.count)
        return (
            [forward_choices(self.problem, i, recompute=False) for i in ids],
            [forward_choices(self.problem, i, recompute=True) for i in ids],
        )

    @cached_property
    def backward_choices(self) -> list[tuple[Choice, ...]]:
        return [backward_choices(self.problem, k) for k in range(1, self.stages)]

    def _add(self, b: ProgramBuilder) -> None:
        stages, count, forward = self.stages, self.count, self.problem.forward
        always = np.zeros((stages, count), dtype=bool)
        always[0] = [f.encodes is None for f in forward]
        self.may_compute = (self.live.compute & fits_alone(self.problem, self.budget_bytes)) | always
        # With one implementation its cost is on r itself, else on d.
        cost = np.zeros((stages, count))
        for i in range(count):
            for part, choices in ((slice(0, 1), self.choices[0][i]), (slice(1, None), self.choices[1][i])):
                cost[part, i] = choices[0].cost if len(choices) == 1 else 0.0
        self.compute = b.columns(
            "compute", (stages, count), lower=always, upper=self.may_compute, cost=cost, integer=True
        )
        self.keep = b.columns("keep", (stages, count), upper=self.live.keep, integer=True)
        picks = [
            (t, i, c)
            for t, i in np.argwhere(self.may_compute).tolist()
            if len(self.choices[min(t, 1)][i]) > 1
            for c in self.choices[min(t, 1)][i]
        ]
        self.pick_stage, self.pick_operator = ints(p[0] for p in picks), ints(p[1] for p in picks)
        self.picks = [p[2] for p in picks]
        self.choice = b.columns("choice", len(picks), upper=1, integer=True, cost=[c.cost for c in self.picks])
        self.pick_at = {(t, i, c.index): int(column) for (t, i, c), column in zip(picks, self.choice, strict=True)}
        self.in_place, self.in_place_at = self._in_place_columns(b, "in_place", encoded=False)
        self.encoded_in_place, self.encoded_in_place_at = self._in_place_columns(b, "encoded_in_place", encoded=True)
        ways = [(k, c) for k, choices in enumerate(self.backward_choices, start=1) for c in choices]
        self.ways = ways
        self.backward = b.columns("backward", len(ways), upper=1, integer=True, cost=[c.cost for _, c in ways])
        self.way_at = {(k, c.index): int(column) for (k, c), column in zip(ways, self.backward, strict=True)}
        needs = sorted({(k, i) for k, c in ways for i in c.needs})
        self.need = b.columns("need", len(needs), upper=[float(self.may_compute[pair]) for pair in needs])
        self.need_at = {pair: int(column) for pair, column in zip(needs, self.need, strict=True)}
        self.resident = b.columns("resident", (stages, count), upper=self.room[:, None])
        self.again = b.columns("again", (len(self.boundaries), count), upper=1)

    @cached_property
    def room(self) -> FloatArray:
        """Room that stage t has next to G_t while it computes forward operators [stages]."""
        return np.array(
            [self.scale.room(self.budget_bytes - self.problem.gradient_bytes(t)) for t in range(self.stages)]
        )

    def _in_place_columns(self, b: ProgramBuilder, name: str, *, encoded: bool) -> tuple[IntArray, IntArray]:
        """Columns for in-place runs and where they are: [stages, V], -1 for none."""
        at = np.full((self.stages, self.count), -1, dtype=np.int64)
        places, cost = [], []
        for i, f in enumerate(self.problem.forward):
            if f.in_place is not None and (f.encodes is not None) == encoded:
                stages = np.flatnonzero(self.may_compute[:, i])
                places.append((stages, i))
                cost += [self.problem.in_place_cost(f.in_place)] * len(stages)
        columns = b.columns(name, len(cost), upper=1, cost=cost, integer=not encoded)
        position = 0
        for stages, i in places:
            at[stages, i] = columns[position : position + len(stages)]
            position += len(stages)
        return columns, at

    @cached_property
    def ways_that_need(self) -> dict[tuple[int, int], list[int]]:
        """Columns of the choices that read result i, for every backward operator k and result i that it may read."""
        found: dict[tuple[int, int], list[int]] = {pair: [] for pair in self.need_at}
        for (k, c), column in zip(self.ways, self.backward, strict=True):
            for i in c.needs:
                found[k, i].append(int(column))
        return found

    @cached_property
    def parents(self) -> IntArray:
        """Parent that each operator encodes, -1 for none [V]."""
        return ints(-1 if f.encodes is None else f.encodes for f in self.problem.forward)

    @cached_property
    def in_place_units(self) -> FloatArray:
        """Workspace that running in place adds [V], in units."""
        deltas = [0 if f.in_place is None else f.in_place.workspace_delta_bytes for f in self.problem.forward]
        return np.array([self.scale.units(d) for d in deltas])


def ints(values: Iterable[int]) -> IntArray:
    """Index array of these values."""
    return np.array(list(values), dtype=np.int64)
