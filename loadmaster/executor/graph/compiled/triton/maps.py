"""The template for values made row by row: a tile of whole rows, or, of long rows such as weights, of their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loadmaster.executor.graph.compiled.triton.expressions import Coordinate, Coordinates, Expressions, store_row
from loadmaster.executor.graph.compiled.triton.generated import Generated, Launch, compares, widest_row
from loadmaster.executor.graph.compiled.triton.rows import Rows
from loadmaster.executor.graph.compiled.triton.source import Argument, Function, Register
from loadmaster.models.graph.cut import LEAST_NUMBERS, ceil_power, floor_power
from loadmaster.models.graph.operators import Shape
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

WHOLE_NUMBERS = 1024  # the longest row of which a program makes all numbers
NUMBERS = 4096  # that a program makes of one value


def mapped(
    program: Program, kernel: Kernel, held: Mapping[int, Argument], wide: frozenset[Space], real: str
) -> Generated:
    f = Function("mapped", real)
    e = Expressions(program, f, held)
    longest = max(program.types[n].numbers for n in kernel.stores)
    in_pieces = longest > WHOLE_NUMBERS
    width = min(ceil_power(longest), WHOLE_NUMBERS)
    widest = max(width, widest_row(program, kernel, held))
    rows = max(1, min(max(kernel.tile.rows, LEAST_NUMBERS // widest), NUMBERS // widest))
    rows = 1 if in_pieces else floor_power(rows)
    count = f.parameter("count", "count", "rows")
    f.axis("r", rows)
    f.body.add(f"row = tl.program_id(0) * {rows} + tl.arange(0, {rows})")
    mask = Register(f"row < {count}", ("r",))
    at = Rows(f, kernel.rows, Register("row", ("r",)), mask, f.body, wide)
    if in_pieces:
        f.axis("n", width)
        f.body.add(f"number = tl.program_id(1) * {width} + tl.arange(0, {width})")
    for n in kernel.stores:
        shape = program.types[n].shape
        where = _places(shape) if in_pieces else e.everywhere(shape)
        value = e.at(n, where, at, e.root(n, at))
        e.results[n] = (at, where, value)
        store_row(e, n, where, value, at, f.body, mask)
    pieces = -(-longest // width) if in_pieces else 1
    grid: tuple[int | tuple[str, int], ...] = (("rows", rows), pieces)
    return Generated((Launch(f, grid, kernel.tile.warps, fuses=not compares(program, kernel)),))


def _places(shape: Shape) -> Coordinates:
    """The coordinates of a run of a row's numbers."""
    found: list[Coordinate] = []
    numbers = math.prod(shape)
    mask = Register(f"number < {numbers}", ("n",))
    step = numbers
    for at, extent in enumerate(shape):
        step //= extent
        code = f"(number // {step})" if step > 1 else "number"
        if at:
            code = f"({code} % {extent})"
        found.append(Coordinate(Register(code, ("n",)), mask))
    return tuple(found)
