"""The templates of products of each type's rows: typed products, through that type's weight, and weights' gradients.

A table of tiles, made once for a graph, gives each program rows of one type; so types of any sizes share one launch,
and no weight is repeated. Rows are gathered, and made from what is held, while they are read; what else the kernel
stores is made from the product in registers. Every head is a program of its own.

A weight's gradient is, for each type, the sum of the products of its rows. These are cut into chunks. A program
multiplies one chunk and leaves its sum; a second launch adds the sums of each type in their order. So many programs
share a large type, and the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.executor.graph.compiled.triton.expressions import (
    Coordinate,
    Coordinates,
    Expressions,
    Unsupported,
    store_row,
)
from loadmaster.executor.graph.compiled.triton.generated import (
    Generated,
    Launch,
    Precision,
    Scratch,
    added_product,
    compares,
)
from loadmaster.executor.graph.compiled.triton.rows import Rows, Seen
from loadmaster.executor.graph.compiled.triton.source import Argument, Block, Function, Register
from loadmaster.models.graph.cut import ceil_power, floor_power
from loadmaster.models.graph.inline import OF_NODES, base
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.phases import joined_heads
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import Space

LEAST = 16  # of each side of a tile of tensor cores
WHOLE_BYTES = 1 << 15  # of a weight that a program reads at once; of a larger one, it reads parts in a loop
ROW_COLUMNS = 1024  # the longest row of which one program has all columns
PRODUCT_NUMBERS = 16384  # of one program's product


def typed_product(
    program: Program, kernel: Kernel, held: Mapping[int, Argument], wide: frozenset[Space], real: str, how: Precision
) -> Generated:
    """The launch of a gemm kernel; Unsupported: something has no expression, or PyTorch's own product does as well."""
    n = next(n for n in kernel.stores if program.values[n].op == "linear")
    if is_plain(program, kernel, held, n):
        raise Unsupported("one product without anything else")
    x, weight = program.values[n].inputs
    types, shape = program.types[weight].space, program.types[n].shape
    extent, columns = program.types[weight].shape[-2:]
    rows, width, along, warps, stages = _tile(program, kernel, held, n, how)
    f = Function("product", real)
    e = Expressions(program, f, held)
    for name, size in (("r", rows), ("k", along), ("c", width)):
        f.axis(name, size)
    f.of_table("tile", ("first", "last", "type"), "_row")
    f.body.add(f"row = first_row + tl.arange(0, {rows})")
    mask = Register("row < last_row", ("r",))
    of_type = Rows(f, types, Register("type_row"), None, f.body, wide)
    at = Rows(f, kernel.rows, Register("row", ("r",)), mask, f.body, wide, of_type)
    heads = shape[0] if len(shape) == 2 else None
    head = (Coordinate(Register("tl.program_id(1)")),) if heads is not None else ()
    column = side(f, "c", columns, width, "tl.program_id(2)")
    f.body.add(f"product = tl.zeros([{rows}, {width}], {real})")
    seen: Seen = "node" if kernel.rows in OF_NODES and program.types[n].space == "node" else "edge"
    heads_along, size = _joined_heads(program, n, held) or (1, extent)
    loop, k = _along(f, heads_along, size, along)
    inner = at
    if loop is not f.body:
        inner = Rows(f, kernel.rows, at.number, mask, loop, wide, Rows(f, types, of_type.number, None, loop, wide))
    x_heads = head if len(program.types[x].shape) == 2 else ()
    w_heads = head if len(program.types[weight].shape) == 3 else ()
    left = e.at(x, (*x_heads, k), inner, seen)
    right = e.at(weight, (*w_heads, k, column), inner, "node" if types == "node_type" else "edge")
    if k.mask is not None:
        # What is made of zeros need not be zero.
        left = f.combined("tl.where({0}, {1}, 0.0)", k.mask, left)
    added_product(f, loop, "product", f.full(left, ("r", "k")), f.full(right, ("k", "c")), "k", how)
    where: Coordinates = (*head, column)
    if columns <= width:
        e.wholes[columns] = column
    e.results[n] = (at, where, Register("product", ("r", "c")))
    if len(kernel.stores) > 1 and not head:
        _by_heads(e, n, at, rows, width)
    for stored in kernel.stores:
        places = _places(e, program.types[stored].shape, shape, head, column)
        value = e.at(stored, places, at, e.root(stored, at))
        e.results[stored] = (at, places, value)
        store_row(e, stored, places, value, at, f.body, mask)
    grid: tuple[int | tuple[str, int], ...] = (("tiles", 1), heads or 1, -(-columns // width))
    return Generated((Launch(f, grid, warps, stages, not compares(program, kernel)),), tile_rows=rows)


def is_plain(program: Program, kernel: Kernel, held: Mapping[int, Argument], n: int) -> bool:
    """Return whether a kernel is one product of given or kept rows with one weight and no more. cuBLAS does it as fast
    as memory allows; rows that are gathered or made first would be written and read for it."""
    x, weight = program.values[n].inputs
    is_ungathered = program.types[n].space in OF_NODES and base(program, x) in held
    return len(kernel.stores) == 1 and program.types[weight].space == "one" and is_ungathered


def _tile(
    program: Program, kernel: Kernel, held: Mapping[int, Argument], n: int, how: Precision
) -> tuple[int, int, int, int, int]:
    """Tile of one program: rows, columns, numbers of a row read at once, warps, loads ahead."""
    extent, columns = program.types[program.values[n].inputs[1]].shape[-2:]
    heads, size = _joined_heads(program, n, held) or (1, extent)
    width = max(LEAST, ceil_power(columns))
    is_by_numbers = all(_is_by_numbers(program, stored, n, held) for stored in kernel.stores)
    if is_by_numbers:
        width = min(width, max(128, min(256, floor_power(kernel.tile.columns))))
    elif width > ROW_COLUMNS:
        raise Unsupported("rows longer than a program has columns")
    if how == "sums":
        if width > 256 and not is_by_numbers:
            raise Unsupported("long rows of float64")
        width = LEAST if is_by_numbers else width
        along = min(max(2, 4096 // (LEAST * width)), max(2, ceil_power(size)))
        return (LEAST, width, along, kernel.tile.warps, 1)
    rows = max(LEAST, min(floor_power(kernel.tile.rows), PRODUCT_NUMBERS // width))
    warps = max(kernel.tile.warps, 8) if rows * width > 8192 else kernel.tile.warps
    number_bytes = 2 if how in ("bfloat16", "float16") else 4
    along = max(LEAST, ceil_power(size))
    if heads == 1 and along * width * number_bytes <= WHOLE_BYTES:
        return (rows, width, along, warps, 1)
    part = floor_power(WHOLE_BYTES // (width * number_bytes))
    along = max(LEAST, min(along, 128 // number_bytes, part))
    return (rows, width, along, warps, 3 if width <= 128 else 2)


def _is_by_numbers(program: Program, stored: int, n: int, held: Mapping[int, Argument]) -> bool:
    """Return whether each number of a stored value is made from the product's number at its own place, if from any."""
    if stored == n or stored in held:
        return True
    value = program.values[stored]
    if OPERATORS[value.op].sort != "map" and value.op not in ("source", "target", "as_node", "spread"):
        return not value.inputs
    return all(_is_by_numbers(program, i, n, held) for i in value.inputs)


def _joined_heads(program: Program, n: int, held: Mapping[int, Argument]) -> tuple[int, int] | None:
    """Heads and their numbers, if a product's rows are joined heads: per-head numbers are then read once each."""
    x = program.values[n].inputs[0]
    return None if base(program, x) in held else joined_heads(program, x)


def _along(f: Function, heads: int, size: int, along: int) -> tuple[Block, Coordinate]:
    """The block in which a product adds up, and the numbers of a row that it multiplies there, ``along`` of a head at
    once. The rows are ``heads`` joined heads of ``size`` numbers each."""
    parts = -(-size // along)
    if heads * parts == 1:
        f.body.add(f"k = tl.arange(0, {along})")
        return f.body, Coordinate(Register("k", ("k",)), _below("k", size, along))
    loop = f.body.inside(f"for step in range(0, {heads * parts}):")
    loop.add(f"k = (step % {parts}) * {along} + tl.arange(0, {along})")
    within = Coordinate(Register("k", ("k",)), _below("k", size, along))
    if heads == 1:
        return loop, within
    loop.add(f"head = step // {parts}")
    at = Register(f"(head * {size} + k)", ("k",))
    return loop, Coordinate(at, within.mask, (Coordinate(Register("head")), within, size))


def _below(name: str, extent: int, size: int) -> Register | None:
    return Register(f"{name} < {extent}", (name,)) if extent % size else None


def side(f: Function, name: str, extent: int, size: int, which: str) -> Coordinate:
    """The numbers of a program along one side of a tile; ``which``: how many programs come before it."""
    begin = f"{which} * {size} + " if extent > size else ""
    f.body.add(f"{name} = {begin}tl.arange(0, {size})")
    return Coordinate(Register(name, (name,)), _below(name, extent, size))


def _places(
    e: Expressions, shape: tuple[int, ...], product: tuple[int, ...], head: Coordinates, column: Coordinate
) -> Coordinates:
    """The coordinates at which a program stores a value, by its shape."""
    if shape == product:
        return (*head, column)
    if head and shape == product[:-1]:
        return head
    if head and shape == (product[0] * product[1],):
        return (e.joined((*head, column), product[1]),)
    return e.everywhere(shape)


def _by_heads(e: Expressions, n: int, at: Rows, rows: int, width: int) -> None:
    """Write the product's columns as heads, where the kernel goes on with them so."""
    for reader in e.program.readers[n]:
        if e.program.values[reader].op != "split_heads":
            continue
        heads, size = e.program.types[reader].shape
        where = e.everywhere((heads, size))
        axes = ("r", *where[0].at.axes, *where[1].at.axes)
        in_order = axes == e.function.union([Register("", axes)])
        if in_order and heads * size == width and all(c.mask is None for c in where):
            e.function.body.add(f"by_heads{reader} = tl.reshape(product, [{rows}, {heads}, {size}])")
            e.results[reader] = (at, where, Register(f"by_heads{reader}", axes))


SIDE = 128  # of the part of a weight that one program makes
SUMMED_NUMBERS = 64  # of a weight, by one program of the second launch
SUMMED_CHUNKS = 64  # that it adds at once


def outer_product(
    program: Program, kernel: Kernel, held: Mapping[int, Argument], wide: frozenset[Space], real: str, how: Precision
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
    f.of_table("chunk", ("row", "first", "last"))
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
    f.of_table("cut", ("row", "begin", "end"))
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
