"""Writer of the rows of grouped programs: linear expressions, appended block by block.

The boundary relaxation (:mod:`relaxation`) and the banded restriction (:mod:`banded`) are written with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.memory.choices import ByteScale
from loadmaster.solvers.program import IntArray, Program, ProgramBuilder, RowList


class OutOfTimeError(Exception):
    """A program is not written to its end: whoever asked for it has no time left for it."""


class Row(dict[int, float]):
    """A linear expression being written: column -> coefficient."""

    def plus(self, other: Row, factor: float = 1.0) -> Row:
        """Add ``factor * other`` in place; returns self."""
        for column, value in other.items():
            self[column] = self.get(column, 0.0) + factor * value
        return self

    def also(self, column: int, value: float = 1.0) -> Row:
        """Add one term in place; returns self."""
        self[column] = self.get(column, 0.0) + value
        return self

    def less(self, column: int, value: float) -> Row:
        """Take one term away in place; returns self."""
        if self.get(column) == value:
            del self[column]
            return self
        return self.also(column, -value)


def term(cells: IntArray, *index: int) -> Row:
    """The column of one cell of a grid, as a row; an empty row where the cell has none (-1)."""
    column = int(cells[index])
    return Row({column: 1.0}) if column >= 0 else Row()


class RowWriter:
    """Writes one program: columns, rows in named blocks, costs.

    Attributes:
        scale: how bytes become coefficients.
        minimizes_budget: the budget is a variable, in units of the scale, and the one thing that is minimized.
        shares: the continuous columns in [0, 1].
        objective, constant: the costs of columns, and what comes on top.
    """

    def __init__(
        self, scale: ByteScale, budget_bytes: int | None, out_of_time: Callable[[], bool] | None = None
    ) -> None:
        """Start a program; a budget of None is minimized. :class:`OutOfTimeError` ends it once ``out_of_time``."""
        self.builder = ProgramBuilder()
        self.scale = scale
        self.minimizes_budget = budget_bytes is None
        self._budget_column = int(self.builder.columns("budget", 1, cost=1.0)[0]) if budget_bytes is None else -1
        self._budget_bytes = budget_bytes or 0
        self.shares: set[int] = set()
        self.objective = Row()
        self.constant = 0.0
        self._rows: dict[str, RowList] = {}
        self._out_of_time = out_of_time

    def look_at_the_clock(self) -> None:
        """End the writing once no time is left: called once for each operator, stage or group."""
        if self._out_of_time is not None and self._out_of_time():
            raise OutOfTimeError

    # -- columns -----------------------------------------------------------------------------------------------------

    def cells(self, name: str, mask: NDArray[np.bool_]) -> IntArray:
        """Columns in [0, 1] for the true cells of a mask; -1 elsewhere."""
        cells = np.full(mask.shape, -1, dtype=np.int64)
        cells[mask] = self.builder.columns(name, int(mask.sum()), upper=1.0, integer=True)
        return cells

    def choices(self, name: str, count: int, *, integer: bool = True) -> IntArray:
        """Columns in [0, 1], one for each of some alternatives."""
        return self.builder.columns(name, count, upper=1.0, integer=integer)

    def binary(self, name: str) -> int:
        """One column that is 0 or 1."""
        return int(self.choices(name, 1)[0])

    def share(self, name: str) -> int:
        """One continuous column in [0, 1]."""
        column = int(self.choices(name, 1, integer=False)[0])
        self.shares.add(column)
        return column

    def amount(self, name: str) -> int:
        """One continuous column that is not negative."""
        return int(self.builder.columns(name, 1)[0])

    def both(self, name: str, first: int, second: int) -> int:
        """A column that is the product of two binary ones."""
        both = self.share(name)
        self.at_most(name, Row({both: 1.0, first: -1.0}), 0.0)
        self.at_most(name, Row({both: 1.0, second: -1.0}), 0.0)
        self.at_most(name, Row({both: -1.0, first: 1.0, second: 1.0}), 1.0)
        return both

    # -- rows --------------------------------------------------------------------------------------------------------

    def at_most(self, name: str, row: Row, upper: float) -> None:
        """Add the row ``row <= upper``."""
        self._rows.setdefault(name, self.builder.row_list(name)).add(list(row), list(row.values()), upper=upper)

    def equal(self, name: str, row: Row, value: float = 0.0) -> None:
        """Add the row ``row = value``."""
        rows = self._rows.setdefault(name, self.builder.row_list(name))
        rows.add(list(row), list(row.values()), lower=value, upper=value)

    def fits(self, name: str, row: Row, taken_bytes: int) -> None:
        """Add the row ``row + taken <= budget``, where the budget may be the variable that is minimized."""
        if self.minimizes_budget:
            self.at_most(name, Row(row).also(self._budget_column, -1.0), -self.scale.units(taken_bytes))
        else:
            self.at_most(name, row, self.room(taken_bytes))

    def room(self, taken_bytes: int) -> float:
        """Room that the budget leaves next to ``taken_bytes``, in units."""
        return self.scale.room(self._budget_bytes - taken_bytes)

    # -- the objective -----------------------------------------------------------------------------------------------

    def cost(self, column: int, cost: float) -> None:
        """The objective pays ``cost`` for a column."""
        self.objective.also(int(column), cost)

    def build(self) -> Program:
        """The program, of everything written."""
        for rows in self._rows.values():
            rows.done()
        if not self.minimizes_budget:
            self.builder.add_costs(self.objective)
            self.builder.offset = self.constant
        return self.builder.build()
