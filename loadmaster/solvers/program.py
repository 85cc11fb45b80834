"""The one form every mixed-integer program takes on its way to a solver: frozen arrays, no algebra.

    minimize    offset + cost . x
    subject to  row_lower <= A x <= row_upper,   lower <= x <= upper,   x[integer] integral
                and, for solvers that know them, intervals that must not overlap

``A`` is stored by rows (CSR). Columns and rows come in named blocks with shapes, so that a solution, an infeasible
subset or a solver's log can be read back in the formulation's own words. Filling arrays directly is two orders of
magnitude faster than any expression layer, and hashable, which the plan cache needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loadmaster.solvers.intervals import BoolArray, FloatArray, IntArray, IntervalCollector, Intervals

__all__ = ["INFINITY", "Block", "BoolArray", "FloatArray", "IntArray", "Program", "ProgramBuilder", "RowList"]

INFINITY = float("inf")

# Solvers keep rows to 1e-6 of their own scale of them; those that break one do so by 1e-2 and more.
_BROKEN = 1e-4


@dataclass(frozen=True)
class Block:
    """A named run of consecutive columns or rows from index ``start`` on; its members follow in C order of
    ``shape``."""

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def indices(self) -> IntArray:
        """Indices of the members, shaped like the block."""
        return np.arange(self.start, self.start + self.size, dtype=np.int64).reshape(self.shape)

    def label(self, index: int) -> str:
        """The name of one member, e.g. ``keep[3,7]``; ``index`` counts over the whole program."""
        if not self.shape:
            return self.name
        position = np.unravel_index(index - self.start, self.shape)
        return f"{self.name}[{','.join(str(int(p)) for p in position)}]"


@dataclass(frozen=True, eq=False)
class Program:
    """A mixed-integer program in read-only arrays. Build one with :class:`ProgramBuilder`. Shapes: ``cost, lower,
    upper, integer`` are [columns]; ``row_start`` is [rows + 1]; ``column_index, value`` are [nonzeros]; ``row_lower,
    row_upper`` are [rows]. ``intervals`` is None for a program of rows alone, which every solver takes."""

    cost: FloatArray
    lower: FloatArray
    upper: FloatArray
    integer: BoolArray
    row_start: IntArray
    column_index: NDArray[np.int32]
    value: FloatArray
    row_lower: FloatArray
    row_upper: FloatArray
    offset: float
    column_blocks: tuple[Block, ...]
    row_blocks: tuple[Block, ...]
    intervals: Intervals | None = None

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.setflags(write=False)

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """The arrays that a solver sees: everything but the offset."""
        return (
            self.cost,
            self.lower,
            self.upper,
            self.integer,
            self.row_start,
            self.column_index,
            self.value,
            self.row_lower,
            self.row_upper,
        )

    @property
    def column_count(self) -> int:
        return len(self.cost)

    @property
    def row_count(self) -> int:
        return len(self.row_lower)

    @property
    def nonzero_count(self) -> int:
        return len(self.value)

    def column_label(self, column: int) -> str:
        """The name of a column in its formulation's words."""
        return _label(self.column_blocks, column)

    def row_label(self, row: int) -> str:
        """The name of a row in its formulation's words."""
        return _label(self.row_blocks, row)

    def block(self, name: str) -> Block:
        """Return the column block called ``name``. Raises KeyError: no such block."""
        for block in self.column_blocks:
            if block.name == name:
                return block
        raise KeyError(name)

    def objective(self, x: FloatArray) -> float:
        """The objective of a point [columns]."""
        return float(self.offset + self.cost @ x)

    def activity(self, x: FloatArray) -> FloatArray:
        """``A x`` for a point [columns]."""
        products = self.value * x[self.column_index]
        # Row by row, so that large rows do not cost small ones their digits.
        return np.bincount(self._row_of_each(), weights=products, minlength=self.row_count).astype(np.float64)

    def _row_of_each(self) -> IntArray:
        """Rows of all nonzeros, [nonzeros]."""
        return np.repeat(np.arange(self.row_count), np.diff(self.row_start))

    def violation(self, x: FloatArray) -> float:
        """The largest violation of any bound, row, integrality or interval at a point, absolute. Zero: feasible."""
        activity = self.activity(x)
        worst = 0.0 if self.intervals is None else self.intervals.violation(x)
        for excess in (
            self.lower - x,
            x - self.upper,
            self.row_lower - activity,
            activity - self.row_upper,
            np.abs(x - np.round(x))[self.integer],
        ):
            if excess.size:
                worst = max(worst, float(excess.max()))
        return worst

    def broken(self, x: FloatArray) -> str | None:
        """The label of a row or column bound that a solver's point [columns] breaks, beyond any solver's tolerance;
        None: it satisfies them all. A row is broken by more than a share of its largest term, since solvers scale rows,
        and a whole number that is rounded moves each of its rows."""
        terms = np.abs(self.value * x[self.column_index])
        largest = np.ones(self.row_count)
        np.maximum.at(largest, self._row_of_each(), terms)
        activity = self.activity(x)
        excess = np.maximum(self.row_lower - activity, activity - self.row_upper) / largest
        if excess.size and excess.max() > _BROKEN:
            return self.row_label(int(excess.argmax()))
        excess = np.maximum(self.lower - x, x - self.upper) / np.maximum(1.0, np.abs(x))
        return self.column_label(int(excess.argmax())) if excess.size and excess.max() > _BROKEN else None

    def fixed(self, columns: IntArray, values: FloatArray) -> Program:
        """Return the program with some columns at fixed values; both [n]."""
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[columns] = upper[columns] = values
        return dataclasses.replace(self, lower=lower, upper=upper)

    def with_row(
        self, name: str, coefficients: FloatArray, *, lower: float = -INFINITY, upper: float = INFINITY
    ) -> Program:
        """Return the program with one more row at the end, dense ``coefficients`` [columns], label ``name``."""
        columns = np.flatnonzero(coefficients)
        return dataclasses.replace(
            self,
            row_start=np.append(self.row_start, self.nonzero_count + len(columns)),
            column_index=np.append(self.column_index, columns.astype(np.int32)),
            value=np.append(self.value, coefficients[columns]),
            row_lower=np.append(self.row_lower, lower),
            row_upper=np.append(self.row_upper, upper),
            row_blocks=(*self.row_blocks, Block(name, self.row_count, ())),
        )

    def sha256(self) -> str:
        """A hash of everything a solver sees (not the names)."""
        digest = hashlib.sha256()
        for array in self._arrays():
            digest.update(str(array.shape).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(repr(self.offset).encode())
        if self.intervals is not None:
            self.intervals.update(digest)
        return digest.hexdigest()


def _label(blocks: tuple[Block, ...], index: int) -> str:
    for block in blocks:
        if block.start <= index < block.start + block.size:
            return block.label(index)
    raise IndexError(index)


class ProgramBuilder:
    """Collects blocks of columns and rows, then freezes them into a :class:`Program`.

    >>> b = ProgramBuilder()
    >>> keep = b.columns("keep", (3,), upper=1, integer=True, cost=[-5.0, -4.0, -3.0])
    >>> b.rows("budget", 1, [(0, keep, [2.0, 3.0, 1.0])], upper=4.0)
    >>> program = b.build()
    """

    def __init__(self) -> None:
        self._columns: list[tuple[FloatArray, FloatArray, FloatArray, BoolArray]] = []
        self._column_blocks: list[Block] = []
        self._column_count = 0
        self._entries: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._row_bounds: list[tuple[FloatArray, FloatArray]] = []
        self._row_blocks: list[Block] = []
        self._row_count = 0
        self._extra_costs: dict[int, float] = {}
        self.offset = 0.0
        self.intervals = IntervalCollector()

    def columns(
        self,
        name: str,
        shape: int | tuple[int, ...],
        *,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = INFINITY,
        cost: ArrayLike = 0.0,
        integer: ArrayLike = False,
    ) -> IntArray:
        """Add a block of columns and return their indices, shaped ``shape``. Bounds and costs broadcast."""
        shape = (shape,) if isinstance(shape, int) else shape
        block = Block(name, self._column_count, shape)
        self._columns.append(
            (
                _spread(cost, shape, np.float64),
                _spread(lower, shape, np.float64),
                _spread(upper, shape, np.float64),
                _spread(integer, shape, np.bool_),
            )
        )
        self._column_blocks.append(block)
        self._column_count += block.size
        return block.indices

    def rows(
        self,
        name: str,
        shape: int | tuple[int, ...],
        terms: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]],
        *,
        lower: ArrayLike = -INFINITY,
        upper: ArrayLike = INFINITY,
    ) -> IntArray:
        """Add a block of rows and return their indices, shaped ``shape``. Each term is ``(row, column, value)``: arrays
        that broadcast together; ``row`` counts from 0 within this block (in C order). Repeated entries add up."""
        shape = (shape,) if isinstance(shape, int) else shape
        block = Block(name, self._row_count, shape)
        for row, column, value in terms:
            r, c, v = np.broadcast_arrays(
                np.asarray(row, dtype=np.int64),
                np.asarray(column, dtype=np.int64),
                np.asarray(value, dtype=np.float64),
            )
            if r.size and (r.min() < 0 or r.max() >= block.size):
                raise IndexError(f"rows {name}: row index {int(r.min())}..{int(r.max())} outside 0..{block.size - 1}")
            if c.size and (c.min() < 0 or c.max() >= self._column_count):
                raise IndexError(f"rows {name}: a column index is outside 0..{self._column_count - 1}")
            self._entries.append((r.ravel() + block.start, c.ravel(), v.ravel()))
        self._row_bounds.append((_spread(lower, shape, np.float64), _spread(upper, shape, np.float64)))
        self._row_blocks.append(block)
        self._row_count += block.size
        return block.indices

    def row_list(self, name: str) -> RowList:
        """A block of rows written one at a time, for rows whose length varies. Close it with ``done()``."""
        return RowList(self, name)

    def add_costs(self, costs: Mapping[int, float]) -> None:
        """Add to the costs of columns that exist already."""
        for column, cost in costs.items():
            self._extra_costs[column] = self._extra_costs.get(column, 0.0) + cost

    def build(self) -> Program:
        """Freeze the program. Entries of one row are sorted by column, repeated ones summed, exact zeros dropped."""
        if self._entries:
            row = np.concatenate([e[0] for e in self._entries])
            column = np.concatenate([e[1] for e in self._entries])
            value = np.concatenate([e[2] for e in self._entries])
        else:
            row = column = np.zeros(0, dtype=np.int64)
            value = np.zeros(0)
        key = row * max(self._column_count, 1) + column
        if key.size and not bool(np.all(key[1:] > key[:-1])):
            order = np.argsort(key, kind="stable")
            key, value = key[order], value[order]
            first = np.concatenate(([True], key[1:] != key[:-1]))
            value = np.add.reduceat(value, np.flatnonzero(first))
            key = key[first]
        present = value != 0.0
        if not bool(present.all()):
            key, value = key[present], value[present]
        row, column = np.divmod(key, max(self._column_count, 1))
        row_start = np.zeros(self._row_count + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=self._row_count), out=row_start[1:])
        cost = _join([c[0] for c in self._columns], np.float64)
        for index, extra in self._extra_costs.items():
            cost[index] += extra
        return Program(
            cost=cost,
            lower=_join([c[1] for c in self._columns], np.float64),
            upper=_join([c[2] for c in self._columns], np.float64),
            integer=_join([c[3] for c in self._columns], np.bool_),
            row_start=row_start,
            column_index=column.astype(np.int32),
            value=np.ascontiguousarray(value),
            row_lower=_join([b[0] for b in self._row_bounds], np.float64),
            row_upper=_join([b[1] for b in self._row_bounds], np.float64),
            offset=float(self.offset),
            column_blocks=tuple(self._column_blocks),
            row_blocks=tuple(self._row_blocks),
            intervals=self.intervals.build(),
        )


class RowList:
    """Rows of one block, appended one at a time. See :meth:`ProgramBuilder.row_list`."""

    def __init__(self, builder: ProgramBuilder, name: str) -> None:
        self._builder = builder
        self._name = name
        self._lengths: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []

    def add(
        self,
        columns: Sequence[int],
        values: Sequence[float],
        *,
        lower: float = -INFINITY,
        upper: float = INFINITY,
    ) -> None:
        """Append ``lower <= values . x[columns] <= upper``."""
        if len(columns) != len(values):
            raise ValueError(f"rows {self._name}: {len(columns)} columns but {len(values)} values")
        self._lengths.append(len(columns))
        self._columns.extend(columns)
        self._values.extend(values)
        self._lower.append(lower)
        self._upper.append(upper)

    def done(self) -> IntArray:
        """Hand the rows to the builder; returns their indices, shape [rows]."""
        count = len(self._lengths)
        row = np.repeat(np.arange(count), self._lengths)
        return self._builder.rows(
            self._name, count, [(row, self._columns, self._values)], lower=self._lower, upper=self._upper
        )


def _spread(value: ArrayLike, shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=dtype), shape)).ravel()


def _join(parts: Sequence[NDArray[Any]], dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
