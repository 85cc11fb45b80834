"""What the grouped formulations share: how their rows are written, and the forward pass.

The boundary relaxation and the banded restriction look at the backward pass in groups of stages, each in its own way;
the forward pass is exact in both, and written here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem
from loadmaster.models.memory.reach import (
    MIB,
    Row,
    groups_of,
    least_workspace_bytes,
    sizes_mib,
    worthwhile,
)
from loadmaster.solvers.program import IntArray, Program, ProgramBuilder, RowList

# Prefix sums over this many results keep the forward rows short.
STRIDE = 8


class Grouped:
    """Base of the grouped programs. Subclasses fill ``stored[0]`` (kept by the forward pass) before the forward pass.

    Attributes:
        groups: first and last stage of each group of backward stages.
        backward: for each backward operator, the columns of its implementations.
        in_place: for each forward operator, the column of running in place in the forward pass, or -1.
        forward_cost: for each forward operator, what it costs in the forward pass: a row, and a constant beside it.
    """

    stored: IntArray

    def __init__(
        self, problem: MemoryProblem, budget_bytes: int | None, starts: Sequence[int], noticeable: float
    ) -> None:
        """``noticeable``: the share of the budget in workspace from which a choice of implementation gets columns."""
        self.problem = problem
        self.groups = groups_of(starts, problem.stage_count)
        self.sizes = sizes_mib(problem)
        self.count = len(problem.forward)
        self.builder = ProgramBuilder()
        self.in_place = np.full(self.count, -1, dtype=np.int64)
        self.backward: list[IntArray] = []
        self.forward_choices: dict[int, tuple[IntArray, tuple[int, ...]]] = {}
        self.forward_cost: list[tuple[Row, float]] = [(Row(), 0.0)] * self.count
        self._needs: dict[tuple[int, int], Row] = {}
        self._free = budget_bytes is None
        self._budget_column = int(self.builder.columns("budget", 1, cost=1.0)[0]) if self._free else -1
        self.budget = 0.0 if budget_bytes is None else budget_bytes / MIB
        self._noticeable_bytes = noticeable * (budget_bytes or int(problem.output_bytes.sum()))
        self._objective = Row()
        self._constant = 0.0
        self._rows: dict[str, RowList] = {}
        self._presences: set[int] = set()  # continuous, in [0, 1]

    # -- writing rows ------------------------------------------------------------------------------------------------

    def _le(self, name: str, row: Row, upper: float) -> None:
        """row <= upper."""
        self._rows.setdefault(name, self.builder.row_list(name)).add(list(row), list(row.values()), upper=upper)

    def _eq(self, name: str, row: Row, value: float = 0.0) -> None:
        self._rows.setdefault(name, self.builder.row_list(name)).add(
            list(row), list(row.values()), lower=value, upper=value
        )

    def _fits(self, name: str, row: Row, taken: float) -> None:
        """row + taken <= budget, where the budget may be the variable that is minimized."""
        if self._free:
            row = Row(row).also(self._budget_column, -1.0)
        self._le(name, row, self.budget - taken)

    def _cells(self, name: str, mask: NDArray[np.bool_], *, integer: bool = True) -> IntArray:
        """Columns in [0, 1] for the true cells of a mask; -1 elsewhere."""
        cells = np.full(mask.shape, -1, dtype=np.int64)
        cells[mask] = self.builder.columns(name, int(mask.sum()), upper=1.0, integer=integer)
        return cells

    def _presence(self, name: str) -> int:
        column = int(self.builder.columns(name, 1, upper=1.0)[0])
        self._presences.add(column)
        return column

    def _cost(self, column: int, cost: float) -> None:
        self._objective.also(int(column), cost)

    # -- what both sides say alike -----------------------------------------------------------------------------------

    def _choose_backward(self) -> None:
        """One implementation for each backward operator; remembers which columns want which result."""
        for operator in self.problem.backward:
            columns = self.builder.columns("backward", len(operator.implementations), upper=1.0, integer=True)
            self.backward.append(columns)
            self._eq("backward", Row({int(c): 1.0 for c in columns}), 1.0)
            for column, choice in zip(columns, operator.implementations, strict=True):
                self._cost(column, self.problem.cost(choice))
                for i in choice.needs:
                    self._needs.setdefault((operator.id, i), Row()).also(int(column))

    def _wanted(self, k: int) -> list[int]:
        """Results that some implementation of backward k reads."""
        return sorted({i for c in self.problem.backward[k - 1].implementations for i in c.needs})

    def _add_forward_pass(self) -> None:
        """The forward pass, with the kept results piling up; implementations and in-place are chosen."""
        kept, gradients = self.stored[0], self.problem.gradient_bytes(0) / MIB
        prefix = self._prefix_sums(kept)
        for f in self.problem.forward:
            before = self._kept_before(f, kept, prefix).plus(self._beside(f))
            taken = gradients + (f.output_bytes + f.live_bytes) / MIB
            if f.encodes is not None:
                self._keep_encoded(f, before, taken)
            else:
                self._compute_forward(f, before, taken)

    def _compute_forward(self, f: ForwardOperator, row: Row, taken: float) -> None:
        choices = worthwhile(self.problem, f.implementations, self._noticeable_bytes)
        cheapest = self.problem.cost(choices[0][1])
        self._constant += cheapest
        cost = Row()
        if len(choices) > 1:
            columns = self.builder.columns("forward_choice", len(choices), upper=1.0, integer=True)
            self._eq("forward_choice", Row({int(c): 1.0 for c in columns}), 1.0)
            self.forward_choices[f.id] = (columns, tuple(c for c, _ in choices))
            for column, (_, choice) in zip(columns, choices, strict=True):
                cost.also(int(column), self.problem.cost(choice) - cheapest)
                row.also(int(column), choice.workspace_bytes / MIB)
        else:
            taken += least_workspace_bytes(f.implementations) / MIB
        if f.in_place is not None:
            column = int(self.builder.columns("in_place", 1, upper=1.0, integer=True)[0])
            self.in_place[f.id] = column
            cost.also(column, self.problem.in_place_cost(f.in_place))
            row.also(column, f.in_place.workspace_delta_bytes / MIB)
            self._le("in_place", Row({column: 1.0}).plus(self._survives(f.in_place.overwrites)), 1.0)
            self._spare_later_readers(column, f.id, f.in_place.overwrites)
        self.forward_cost[f.id] = cost, cheapest
        self._objective.plus(cost)
        self._fits("forward", row, taken)

    def _survives(self, i: int) -> Row:
        """1 when result i outlives the forward pass, so that nothing may overwrite it."""
        return Row({int(self.stored[0, i]): 1.0}) if self.stored[0, i] >= 0 else Row()

    def _spare_later_readers(self, in_place: int, j: int, i: int) -> None:
        """Running j in place over result i excludes operators after j that read i: encoded ones run when kept."""
        for reader in self.problem.consumers[i]:
            if reader > j and self.problem.forward[reader].encodes is None:
                self._le("in_place", Row({in_place: 1.0}), 0.0)
            elif reader > j and self.stored[0, reader] >= 0:
                self._le("in_place", Row({in_place: 1.0, int(self.stored[0, reader]): 1.0}), 1.0)

    def _keep_encoded(self, f: ForwardOperator, before: Row, taken: float) -> None:
        """An encoded result: computed in the forward pass exactly when it is kept."""
        raise TypeError(f"{type(self).__name__} does not say how it keeps encoded results")

    def _beside(self, f: ForwardOperator) -> Row:
        """Further bytes resident while forward operator f runs."""
        return Row()

    def _prefix_sums(self, kept: IntArray) -> IntArray:
        """Columns holding the kept bytes (MiB) of results 0..STRIDE*n-1, n = 0, 1, ..."""
        count = (self.count + STRIDE - 1) // STRIDE
        columns = self.builder.columns("kept_before", count)
        self._eq("kept_before", Row({int(columns[0]): 1.0}))
        for n in range(1, count):
            row = Row({int(columns[n]): 1.0, int(columns[n - 1]): -1.0})
            for i in range((n - 1) * STRIDE, n * STRIDE):
                if kept[i] >= 0:
                    row.also(int(kept[i]), -self.sizes[i])
            self._eq("kept_before", row)
        return columns

    def _kept_before(self, f: ForwardOperator, kept: IntArray, prefix: IntArray) -> Row:
        """Kept bytes of results before f that are not live anyway."""
        n = f.id // STRIDE
        row = Row({int(prefix[n]): 1.0})
        live = set(f.live_inputs)
        for i in range(n * STRIDE, f.id):
            if i not in live and kept[i] >= 0:
                row.also(int(kept[i]), self.sizes[i])
        for i in live:
            if i < n * STRIDE and kept[i] >= 0:
                row.also(int(kept[i]), -self.sizes[i])
        return row

    def _build(self) -> Program:
        for rows in self._rows.values():
            rows.done()
        if self._free:
            return self.builder.build()
        self.builder.add_costs(self._objective)
        self.builder.offset = self._constant
        return self.builder.build()
