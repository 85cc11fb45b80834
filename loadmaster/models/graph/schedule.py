"""Schedules of a program: the values that are kept, and the kernels that make them ([Wu24] sections 3.3.2, 3.3.3).

A value is *kept* where a kernel stores it, a row for each row of its space. Other values are made again inside every
kernel that needs them (*inline*). A kernel is one of five templates:

    gemm      one ``linear``, rows of one type through one weight; other values that it stores are made from its rows
    traverse  aggregates from one space to one space: for each row of it, over the rows that belong to it; one may read
              another of the same kernel, which then runs over the rows again
    outer     one ``outer``: a weight's gradient
    map       values of one space, row by row
    fold      one product of weights

A schedule holds when

(S1)  every result is kept, or a view of what is; every kept value is stored by one kernel;
(S2)  kernels come after those whose values they read; no forward kernel stores a value of the backward pass;
(S3)  what is inline can be made where it is needed: products through weights, aggregates and outers are kept, and so
      are values that edges read at their nodes (``source``, ``target``) and factors of products of weights; in the rows
      that a ``gemm`` or an ``outer`` reads, only what is made number by number is inline;
(S4)  a kernel reads no value of a finer space than its own rows, or than those that it runs over;
(S5)  what a kernel stores fits its template, and is of the space of its rows. The rows of node, source and target are
      the same. It is no more than a program holds in registers: :data:`MOST_STORES`;
(S6)  a kernel is cut into tiles that kernels have: :class:`Tiles`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar, Literal

from loadmaster.models.fields import READING, Ascending, Bounds, Index
from loadmaster.models.graph.operators import GIVEN, OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.spaces import Space

Template = Literal["gemm", "traverse", "outer", "map", "fold"]

# Values that one kernel stores, at the most.
MOST_STORES: Mapping[Template, int] = {"gemm": 4, "traverse": 4, "outer": 1, "map": 2, "fold": 1}


@dataclass(frozen=True)
class Tile:
    """Tile by which a kernel is cut; rows are those of one program, of a traversal those that it runs over at once."""

    rows: Annotated[int, Bounds(ge=1, le=1024)] = 64
    columns: Annotated[int, Bounds(ge=1, le=1024)] = 64
    warps: Annotated[int, Bounds(ge=1, le=32)] = 4


@dataclass(frozen=True)
class Tiles:
    """Tiles of a template: each number of rows with each of columns and of warps; by default all that kernels have."""

    leave_out_defaults: ClassVar = True

    rows: Annotated[tuple[int, ...], Bounds(min_length=1), Ascending()] = (16, 32, 64, 128)
    columns: Annotated[tuple[int, ...], Bounds(min_length=1), Ascending()] = (16, 32, 64, 128, 256)
    warps: Annotated[tuple[int, ...], Bounds(min_length=1), Ascending()] = (4, 8)

    def __contains__(self, tile: Tile) -> bool:
        return tile.rows in self.rows and tile.columns in self.columns and tile.warps in self.warps

    def from_(self, tile: Tile) -> list[Tile]:
        """List all tiles with the columns of this one, on which no time depends; this one first if it is among them."""
        columns = tile.columns if tile.columns in self.columns else self.columns[0]
        tiles = [Tile(rows, columns, warps) for rows, warps in product(self.rows, self.warps)]
        return sorted(tiles, key=lambda other: other != tile)

    @property
    def words(self) -> str:
        """Numbers of rows, columns and warps in words, for error messages."""
        rows, columns, warps = (", ".join(map(str, some)) for some in (self.rows, self.columns, self.warps))
        return f"rows: {rows}; columns: {columns}; warps: {warps}"


EVERY_TILE = Tiles()


@dataclass(frozen=True)
class Kernel:
    """Kernel of a schedule: ``rows`` is the space of the values that it stores, by which its work is divided; ``over``,
    of a traversal and an outer, the space of the rows that belong to a row."""

    leave_out_defaults: ClassVar = True

    template: Template
    rows: Space
    stores: Annotated[tuple[Index, ...], Bounds(min_length=1, max_length=200)]
    over: Space | None = None
    tile: Tile = Tile()


@dataclass(frozen=True)
class Schedule:
    """Schedule of a program: kernels in the order in which they run."""

    kernels: Annotated[tuple[Kernel, ...], Bounds(min_length=1, max_length=1_000)]
    forward_count: Annotated[int, Bounds(ge=1)]

    __pydantic_config__: ClassVar = READING

    @property
    def kept(self) -> dict[int, int]:
        """Map each stored value to the kernel that stores it, by the numbers of both."""
        return {n: at for at, kernel in enumerate(self.kernels) for n in kernel.stores}


def is_free(program: Program, n: int) -> bool:
    """Return whether a value costs nothing: it is given, or a view."""
    return program.values[n].op in GIVEN or OPERATORS[program.values[n].op].sort == "view"


def must_be_kept(program: Program, n: int) -> bool:
    """Return whether a value cannot be inline: a product through a weight, an aggregate, an outer or a fold."""
    value = program.values[n]
    return value.op == "linear" or OPERATORS[value.op].sort in ("aggregate", "outer", "weight")
