"""Values of a program as expressions of Triton: each number is asked for by its coordinates, down to what is held.

A value is asked for at rows (:class:`~loadmaster.executor.graph.compiled.triton.rows.Rows`) and coordinates, one for
each dimension of its shape: tiles of numbers along an axis, or one number. An operator asks its inputs at coordinates
of its own: ``part`` adds its start, ``join_heads`` divides, ``dot`` asks along one more axis and sums. What is held is
loaded at the final coordinates, so views, parts and repetitions cost no instruction but those of an address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.executor.graph.compiled.triton.rows import Rows, Seen
from loadmaster.executor.graph.compiled.triton.source import Argument, Block, Function, Register, atom
from loadmaster.models.graph.cut import ceil_power
from loadmaster.models.graph.inline import OF_NODES, base
from loadmaster.models.graph.operators import OPERATORS, Value
from loadmaster.models.graph.program import Program


class Unsupported(Exception):
    """A kernel that the templates do not generate; it runs on PyTorch's own."""


@dataclass(frozen=True)
class Coordinate:
    """Numbers along one dimension of a value. ``mask``: which of them there are; None: all. ``parts``, in vectors of
    joined heads: the head, the number in the head, and how many numbers a head has."""

    at: Register
    mask: Register | None = None
    parts: tuple[Coordinate, Coordinate, int] | None = field(default=None, compare=False)


Coordinates = tuple[Coordinate, ...]


class Expressions:
    """Writes values of one program into one kernel.

    Attributes:
        held: numbers of values that are in memory, with what the parameters are bound to that point to them.
        results: values that the kernel has computed so far, at its own rows: (these, coordinates, register) by number.
        wholes: by extent, coordinates that are all of a dimension already.
    """

    def __init__(self, program: Program, function: Function, held: Mapping[int, Argument]) -> None:
        self.program, self.function, self.held = program, function, held
        self.results: dict[int, tuple[Rows, Coordinates, Register]] = {}
        self.wholes: dict[int, Coordinate] = {}

    def whole(self, extent: int, beside: Sequence[Coordinate] = ()) -> Coordinate:
        """The coordinate of a whole dimension, along an axis that none of the others has."""
        taken = self.function.union(c.at for c in beside)
        if extent in self.wholes and not set(self.wholes[extent].at.axes) & set(taken):
            return self.wholes[extent]
        name = next(name for name in (f"x{extent}", f"y{extent}", f"z{extent}") if name not in taken)
        size = ceil_power(extent)
        if name not in self.function.sizes:
            self.function.axis(name, size)
            self.function.head.add(f"{name} = tl.arange(0, {size})")
        mask = Register(f"{name} < {extent}", (name,)) if size != extent else None
        return Coordinate(Register(name, (name,)), mask)

    def everywhere(self, shape: Sequence[int]) -> Coordinates:
        found: list[Coordinate] = []
        for extent in shape:
            found.append(self.whole(extent, found))
        return tuple(found)

    def at(self, n: int, coordinates: Coordinates, rows: Rows, seen: Seen) -> Register:
        """The expression of a value at coordinates of these rows; written once for each."""
        typed = self.program.types[n]
        rows = rows.where(typed.space, seen)
        if n in self.results:
            of, where, register = self.results[n]
            if of is rows and where == coordinates and _is_own(rows, seen):
                return register
        key = (n, coordinates, seen)
        if key not in rows.memo:
            made = self._made(n, coordinates, rows, seen)
            rows.memo[key] = made if made.code.isidentifier() else self.function.named(rows.block, made)
        return rows.memo[key]

    def root(self, n: int, rows: Rows) -> Seen:
        """Return how a kernel on these rows sees a value that it stores."""
        of_nodes = self.program.types[n].space in ("node", "node_type")
        return "node" if of_nodes and rows.space in OF_NODES else "edge"

    def _made(self, n: int, coordinates: Coordinates, rows: Rows, seen: Seen) -> Register:
        value = self.program.values[n]
        if n in self.held:
            return self._loaded(n, coordinates, rows, seen)
        rule = _RULES.get(value.op)
        if rule is not None:
            return rule(self, value, coordinates, rows, seen)
        if OPERATORS[value.op].sort != "map":
            raise Unsupported(f"{value.op} inside a kernel")
        given = [self.at(i, coordinates[: len(self.program.types[i].shape)], rows, seen) for i in value.inputs]
        return self.function.combined(formula(value, self.function.real), *given)

    def _loaded(self, n: int, coordinates: Coordinates, rows: Rows, seen: Seen) -> Register:
        typed, function = self.program.types[n], self.function
        begin = rows.offset(typed.space, seen, typed.numbers)
        offset = self.place(typed.shape, coordinates)
        if begin is not None:
            offset = function.combined("{0} + {1}", begin, offset) if offset.code != "0" else begin
        mask = function.both(None if begin is None else rows.mask_of(begin), *(c.mask for c in coordinates))
        bound = self.held[n]
        loaded = function.load(function.parameter(f"{bound[0]}{n}", *bound), offset, mask)
        return Register(f"{loaded.code}.to({function.real})", loaded.axes)

    def place(self, shape: Sequence[int], coordinates: Coordinates) -> Register:
        """The offset within a row of the number at these coordinates."""
        found: Register | None = None
        step = 1
        for extent, coordinate in zip(reversed(shape), reversed(coordinates), strict=True):
            at = coordinate.at
            term = at if step == 1 else Register(f"{atom(at.code)} * {step}", at.axes)
            found = term if found is None else self.function.combined("{1} + {0}", found, term)
            step *= extent
        return found or Register("0")

    def joined(self, by_head: Coordinates, size: int) -> Coordinate:
        """The coordinate in vectors of all heads for (head, number in the head); ``size``: numbers of a head."""
        head, number = by_head
        at = self.function.combined(f"({{0}} * {size} + {{1}})", head.at, number.at)
        return Coordinate(at, self.mask(by_head), (head, number, size))

    def mask(self, coordinates: Coordinates) -> Register | None:
        """The mask of these coordinates together; None: all of them exist."""
        return self.function.both(*(c.mask for c in coordinates))

    def summed(self, made: Register, over: Coordinate) -> Register:
        """The sum of a tile along the axis of a coordinate."""
        (axis,) = over.at.axes
        if axis not in made.axes:
            made = self.function.full(made, self.function.union((made, over.at)))
        if over.mask is not None:
            made = self.function.combined("tl.where({0}, {1}, 0.0)", over.mask, made)
        rest = tuple(a for a in made.axes if a != axis)
        return Register(f"tl.sum({made.code}, axis={made.axes.index(axis)})", rest)


def _is_own(rows: Rows, seen: Seen) -> bool:
    """Return whether a value is seen at the rows themselves, not at an end of them."""
    return seen in ("edge", "node") or seen == rows.space


def store_row(
    e: Expressions, n: int, where: Coordinates, value: Register, rows: Rows, block: Block, mask: Register | None
) -> None:
    """Store a value of the rows at their own place; ``mask``: which rows; None: all."""
    typed, f = e.program.types[n], e.function
    number = rows.number.code
    begin = f"{number}.to(tl.int64)" if typed.space in rows.wide else number
    offset = f.combined(
        f"{{0}} * {typed.numbers} + {{1}}", Register(begin, rows.number.axes), e.place(typed.shape, where)
    )
    name = f.parameter(f"stored{n}", "stored", n)
    f.store(block, name, offset, value, f.both(mask, e.mask(where)))


Rule = Callable[[Expressions, Value, Coordinates, Rows, Seen], Register]


def _moved_to(where: Callable[[Coordinates], Coordinates]) -> Rule:
    """Rule of an operator that has its input's numbers at other coordinates."""
    return lambda e, value, c, rows, seen: e.at(value.inputs[0], where(c), rows, seen)


def _end(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    end: Seen = "source" if value.op == "source" else "target"
    return e.at(value.inputs[0], c, rows, end if seen == "edge" else seen)


def _split_heads(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    size = e.program.types[value.inputs[0]].shape[0] // (value.count or 1)
    return e.at(value.inputs[0], (e.joined(c, size),), rows, seen)


def _join_heads(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    (joined,) = c
    size = e.program.types[value.inputs[0]].shape[1]
    return e.at(value.inputs[0], _parted(joined, size), rows, seen)


def _parted(joined: Coordinate, size: int) -> Coordinates:
    if joined.parts is not None and joined.parts[2] == size:
        return joined.parts[:2]
    code = atom(joined.at.code)
    head = Coordinate(Register(f"({code} // {size})", joined.at.axes), joined.mask)
    return head, Coordinate(Register(f"({code} % {size})", joined.at.axes), joined.mask)


def _merge_heads(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    merged, k = c
    head, m = _parted(merged, e.program.types[value.inputs[0]].shape[2])
    return e.at(value.inputs[0], (head, k, m), rows, seen)


def _moved(e: Expressions, coordinate: Coordinate, by: int, low: int, high: int) -> Coordinate:
    """Move a coordinate by ``by``; its mask keeps what then is at least low and below high."""
    at = Register(f"({atom(coordinate.at.code)} + {by})" if by else coordinate.at.code, coordinate.at.axes)
    bounds = Register(f"({atom(at.code)} >= {low}) & ({atom(at.code)} < {high})", at.axes)
    return Coordinate(at, e.function.both(coordinate.mask, bounds))


def _concat(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    first, second = (e.program.types[i].shape[-1] for i in value.inputs)
    a = e.at(value.inputs[0], (*c[:-1], _moved(e, c[-1], 0, 0, first)), rows, seen)
    b = e.at(value.inputs[1], (*c[:-1], _moved(e, c[-1], -first, 0, second)), rows, seen)
    where = Register(f"{atom(c[-1].at.code)} < {first}", c[-1].at.axes)
    return e.function.combined("tl.where({0}, {1}, {2})", where, a, b)


def _part(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    start = int(value.number or 0)
    at = Register(f"({atom(c[-1].at.code)} + {start})" if start else c[-1].at.code, c[-1].at.axes)
    return e.at(value.inputs[0], (*c[:-1], Coordinate(at, c[-1].mask)), rows, seen)


def _pad(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    start, extent = int(value.number or 0), e.program.types[value.inputs[0]].shape[-1]
    moved = _moved(e, c[-1], -start, 0, extent)
    inner = e.at(value.inputs[0], (*c[:-1], moved), rows, seen)
    where = Register(f"({atom(moved.at.code)} >= 0) & ({atom(moved.at.code)} < {extent})", moved.at.axes)
    return e.function.combined("tl.where({0}, {1}, 0.0)", where, inner)


def _dot(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    along = e.whole(e.program.types[value.inputs[0]].shape[-1], c)
    heads = len(c)
    a, b = (
        e.at(i, ((*c, along) if len(e.program.types[i].shape) == heads + 1 else (along,)), rows, seen)
        for i in value.inputs
    )
    return e.summed(e.function.combined("{0} * {1}", a, b), along)


def _equal(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    a, b = (e.at(i, c[: len(e.program.types[i].shape)], rows, seen) for i in value.inputs)
    if all(base(e.program, i) in e.held for i in value.inputs):
        return e.function.combined(f"tl.where({{0}} == {{1}}, 1.0, 0.0).to({e.function.real})", a, b)
    # The greatest was found in another kernel, which may have rounded what is made again here in another order.
    rounding = 2.0**-48 if e.function.real == "tl.float64" else 2.0**-20
    near = f"tl.abs({{0}} - {{1}}) <= {rounding!r} * tl.abs({{1}})"
    return e.function.combined(f"tl.where({near}, 1.0, 0.0).to({e.function.real})", a, b)


def _row_sum(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    along = e.whole(e.program.types[value.inputs[0]].shape[-1], c)
    return e.summed(e.at(value.inputs[0], (*c, along), rows, seen), along)


def _head_sum(e: Expressions, value: Value, c: Coordinates, rows: Rows, seen: Seen) -> Register:
    along = e.whole(e.program.types[value.inputs[0]].shape[0], c)
    return e.summed(e.at(value.inputs[0], (along, *c), rows, seen), along)


_RULES: dict[str, Rule] = {
    "source": _end,
    "target": _end,
    "as_node": _moved_to(lambda c: c),
    "spread": _moved_to(lambda c: c),
    "split_heads": _split_heads,
    "join_heads": _join_heads,
    "transpose": _moved_to(lambda c: (*c[:-2], c[-1], c[-2])),
    "merge_heads": _merge_heads,
    "concat": _concat,
    "part": _part,
    "pad": _pad,
    "repeat_heads": _moved_to(lambda c: c[1:]),
    "repeat_last": _moved_to(lambda c: c[:-1]),
    "equal": _equal,
    "dot": _dot,
    "row_sum": _row_sum,
    "head_sum": _head_sum,
}


_ERF = f"tl.math.erf({{0}} * {math.sqrt(0.5)!r})"

# Triton's interpreter knows no tanh. Made of exp it cancels near 0, where its series takes over.
_SQUARE = "{0} * {0}"
_SERIES = f"{{0}} * (1.0 - {_SQUARE} * (1 / 3 - {_SQUARE} * (2 / 15 - {_SQUARE} * (17 / 315 - {_SQUARE} * 62 / 2835))))"
_FORMULAS: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "relu": "tl.maximum({0}, 0.0)",
    "leaky_relu": "tl.where({0} > 0, {0}, {0} * {number})",
    "elu": "tl.where({0} > 0, {0}, tl.exp(tl.minimum({0}, 0.0)) - 1.0)",
    "gelu": f"0.5 * {{0}} * (1.0 + {_ERF})",
    "gelu_slope": f"0.5 * (1.0 + {_ERF}) + {{0}} * tl.exp({{0}} * {{0}} * -0.5) * {1 / math.sqrt(2 * math.pi)!r}",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))",
    "tanh": f"tl.where(tl.abs({{0}}) < 0.1, {_SERIES}, 2.0 / (1.0 + tl.exp({{0}} * -2.0)) - 1.0)",
    "reciprocal": "1.0 / {0}",
    "step": "tl.where({0} > 0, 1.0, 0.0).to({real})",
    "scale": "{0} * {number}",
    "shift": "{0} + {number}",
}


def formula(value: Value, real: str) -> str:
    """Return an operator as a formula of ``{0}`` and, if it has two inputs, ``{1}``, in numbers of type ``real``."""
    return _FORMULAS[value.op].replace("{number}", repr(float(value.number or 0.0))).replace("{real}", real)
