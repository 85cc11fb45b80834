"""The template of weights' gradients: for each type, the sum of the products of its rows.

The rows of a type are cut into chunks. A program multiplies one chunk and leaves its sum; a second launch adds the sums
of each type in their order. So many programs share a large type, and the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.executor.graph.compiled.triton.expressions import Coordinate, Expressions, Unsupported
from loadmaster.executor.graph.compiled.triton.gemm import LEAST, side
from loadmaster.executor.graph.compiled.triton.generated import (
    Generated,
    Launch,
    Precision,
    Scratch,
    added_product,
    compares,
)
from loadmaster.executor.graph.compiled.triton.rows import Rows, Seen
from loadmaster.executor.graph.compiled.triton.source import Argument, Function, Register
from loadmaster.models.graph.cut import ceil_power, floor_power
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

SIDE = 128  # of the part of a weight that one program makes
SUMMED_NUMBERS = 64  # of a weight, by one program of the second launch
SUMMED_CHUNKS = 64  # that it adds at once


def outer_product(
    program: Program,
    kernel: Kernel,
    held: Mapping[int, Argument],
    wide: frozenset[Space],
    real: str,
    how: Precision,
) -> Generated:
    """The launches of an outer kernel; Unsupported: something has no expression, or every row has a sum of its own."""
    (n,) = kernel.stores
    value, shape = program.values[n], program.types[n].shape
    types = program.types[n].space
    assert value.over is not None
    if value.over == types:
        raise Unsupported("a product for each row")
    x, y = value.inputs
    extent, columns = shape[-2:]
    heads = shape[0] if len(shape) == 3 else None
    high, width = (min(SIDE, max(LEAST, ceil_power(side))) for side in (extent, columns))
    rows = max(LEAST, min(64, floor_power(kernel.tile.rows)))
    warps = kernel.tile.warps if high * width <= 8192 else max(8, kernel.tile.warps)
    if how in ("tf32", "tf32x3"):
        rows = min(rows, 32)
    if how == "sums":
        high = width = rows = LEAST
    f = Function("chunk", real)
    e = Expressions(program, f, held)
    for name, size in (("r", rows), ("k", high), ("c", width)):
        f.axis(name, size)
    f.body.add("chunk = tl.program_id(0)")
    for name in ("row", "first", "last"):
        table = f.parameter(f"chunk_{name}", "table", f"chunk_{name}")
        f.body.add(f"{name} = tl.load({table} + chunk)")
    across = -(-columns // width)
    down = -(-extent // high)
    k = side(f, "k", extent, high, f"(tl.program_id(2) // {across})" if across > 1 else "tl.program_id(2)")
    c = side(f, "c", columns, width, f"(tl.program_id(2) % {across})")
    f.body.add(f"total = tl.zeros([{high}, {width}], {real})")
    before = f.body.beside()
    loop = f.body.inside(f"for start in range(first, last, {rows}):")
    loop.add(f"number = start + tl.arange(0, {rows})")
    mask = Register("number < last", ("r",))
    of_type = Rows(f, types, Register("row"), None, before, wide)
    at = Rows(f, value.over, Register("number", ("r",)), mask, loop, wide, of_type)
    seen: Seen = "node" if value.over == "node" else "edge"
    summed_heads = program.types[x].shape[0] if value.count is not None else 1
    for which in range(summed_heads):
        head = Coordinate(Register("tl.program_id(1)" if heads is not None else str(which)))
        a, b = (
            e.at(i, (*([head] if len(program.types[i].shape) == 2 else []), side), at, seen)
            for i, side in ((x, k), (y, c))
        )
        left, right = (_kept(f, made, mask, axes) for made, axes in ((a, ("r", "k")), (b, ("r", "c"))))
        added_product(f, loop, "total", f.named(loop, left), f.named(loop, right), "r", how)
    part = f.parameter("part", "scratch", "part")
    numbers = program.types[n].numbers
    of_head = f"tl.program_id(1) * {extent * columns} + " if heads is not None else ""
    offset = f.combined(f"chunk.to(tl.int64) * {numbers} + {of_head}{{0}}", e.place((extent, columns), (k, c)))
    f.store(f.body, part, offset, Register("total", ("k", "c")), e.mask((k, c)))
    fuses = not compares(program, kernel)
    products = Launch(f, (("chunks", 1), heads or 1, down * across), warps, 2, fuses)
    return Generated((products, _summed(n, numbers, types, wide, real)), (Scratch("part", "chunks", numbers),))


def _kept(f: Function, made: Register, mask: Register, axes: tuple[str, ...]) -> Register:
    """Set rows past the last to zero: what is made of zeros need not be zero."""
    return f.full(f.combined("tl.where({0}, {1}, 0.0)", mask, made), axes)


def _summed(n: int, numbers: int, types: Space, wide: frozenset[Space], real: str) -> Launch:
    """The launch that adds the chunks of each type."""
    f = Function("summed", real)
    block = min(SUMMED_NUMBERS, ceil_power(numbers))
    for name, size in (("r", SUMMED_CHUNKS), ("n", block)):
        f.axis(name, size)
    f.body.add("which = tl.program_id(0)")
    for name in ("row", "begin", "end"):
        table = f.parameter(f"cut_{name}", "table", f"cut_{name}")
        f.body.add(f"{name} = tl.load({table} + which)")
    part = f.parameter("part", "scratch", "part")
    f.body.add(f"number = tl.program_id(1) * {block} + tl.arange(0, {block})")
    f.body.add(f"total = tl.zeros([{SUMMED_CHUNKS}, {block}], {real})")
    loop = f.body.inside(f"for start in range(begin, end, {SUMMED_CHUNKS}):")
    loop.add(f"chunk = start + tl.arange(0, {SUMMED_CHUNKS})")
    loop.add(f"mask = (chunk < end)[:, None] & (number < {numbers})[None, :]")
    loop.add(f"place = chunk.to(tl.int64)[:, None] * {numbers} + number[None, :]")
    loop.add(f"total += tl.load({part} + place, mask=mask, other=0)")
    f.body.add("found = tl.sum(total, axis=0)")
    name = f.parameter(f"stored{n}", "stored", n)
    row = "row.to(tl.int64)" if types in wide else "row"
    offset = Register(f"{row} * {numbers} + number", ("n",))
    f.store(f.body, name, offset, Register("found", ("n",)), Register(f"number < {numbers}", ("n",)))
    return Launch(f, (("cut_rows", 1), -(-numbers // block)), 4)
