"""Operators of graph programs: what each takes, and the shape and space of what it makes.

Views cost nothing:

    source, target            node -> source, target: a node's value, seen from its edges
    as_node                   source, target -> node: the way back
    spread                    to a finer space: a row for each edge where one for each source and relation would do
    split_heads, join_heads   (H D,) <-> (H, D)
    transpose                 of a weight: (K, M) -> (M, K), (H, K, M) -> (H, M, K)
    merge_heads               of a weight, for the gradient of rows that all heads share: (H, K, M) -> (H M, K)

By rows; a value of fewer dimensions is repeated over the last ones of another: (H,) with (H, D):

    add, sub, mul, div, equal; neg, exp, log, relu, leaky_relu, elu, gelu, sigmoid, tanh, reciprocal, step, scale, shift
    concat                    (H, K), (H, M) -> (H, K + M)
    part, pad                 ``count`` of the last dimension from the value's number on; the way back, zeros elsewhere
    repeat_heads, repeat_last (K,) -> (H, K), ``count`` times; (H,) -> (H, K), ``count`` times
    linear(x, W)              (K,) x (K, M) -> (M,);  (K,) x (H, K, M), (H, K) x (H, K, M), (H, K) x (K, M) -> (H, M)
    dot(a, b)                 over the last dimension: (H, K), (H, K) -> (H,); one of both may lack H
    row_sum, head_sum         over the last dimension: (H, K) -> (H,); over the first of two: (H, K) -> (K,)
    fold(W, w)                weights: (K, M), (M,) -> (K,);  (H, K, M), (H, M) -> (H, K);  (K, M), (M, P) -> (K, P)

Over rows:

    aggregate(x; over, to)    sum, mean, max, min or logsumexp of the rows of ``over`` that have one row of ``to``; a
                              row of ``to`` without any gets zero
    outer(x, y; over, to)     a weight's gradient: the sum of x y' of those rows: (K,), (M,) -> (K, M); with heads as
                              for ``linear``; (H, K), (H, M) -> (K, M) where ``count`` says that heads share it

``step`` is 1 above 0 and 0 elsewhere: the slope of ``relu``. ``gelu_slope`` is that of ``gelu``. ``equal`` is 1 where
both are equal. ``scale`` and ``shift`` multiply by, and add, the value's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds, Index, Name
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space, is_coarser, join

Shape = tuple[int, ...]
GIVEN_SPACES: dict[str, tuple[Space, ...]] = {
    "feature": ("node", "edge"),
    "parameter": WEIGHT_SPACES,
    "degree": ("source", "target", "target_pair"),
    "gradient": ("node",),
}
Extent = Annotated[int, Bounds(ge=1, le=1 << 20)]
# Operators of values that are given, not computed.
GIVEN = frozenset({"feature", "parameter", "degree", "gradient"})


@dataclass(frozen=True)
class Value:
    """Value of a graph program, with the operator that makes it.

    Attributes:
        op: key of :data:`loadmaster.models.graph.operators.OPERATORS`.
        inputs: the numbers of values before it.
        number: the operator's own number: the slope of ``leaky_relu``, the start of a ``part``.
        count: the operator's own count: heads of ``split_heads``, numbers of a ``part``.
        space: of a given value, or of the result of an ``aggregate``, ``outer`` or ``spread``; None elsewhere.
        over: the rows that an ``aggregate`` or ``outer`` runs over; None elsewhere.
        reduce: reduction of an ``aggregate``; None elsewhere.
        shape: of a given value; None elsewhere.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    op: Name
    inputs: tuple[Index, ...] = ()
    number: float | None = None
    count: Extent | None = None
    space: Space | None = None
    over: Space | None = None
    reduce: Annotated[str, Bounds(pattern=r"^(sum|mean|max|min|logsumexp)$")] | None = None
    shape: Annotated[tuple[Extent, ...], Bounds(max_length=3)] | None = None


@dataclass(frozen=True)
class Typed:
    """Shape and space of a value, derived from its operator."""

    shape: Shape
    space: Space

    @property
    def numbers(self) -> int:
        """Number of elements in a row."""
        return math.prod(self.shape)


Rule = Callable[[str, "Value", Sequence[Typed]], Typed]


@dataclass(frozen=True)
class OperatorKind:
    """Operator of graph programs, with its typing rule, which raises for inputs that it cannot take. Its ``sort`` is
    ``given``, ``view``, ``map`` (each number of a row by itself), ``row`` (a row by itself: products, sums in it),
    ``aggregate``, ``outer`` or ``weight`` (of weights alone)."""

    sort: str
    arity: int
    rule: Rule

    def typed(self, where: str, value: Value, given: Sequence[Typed]) -> Typed:
        """Derive shape and space of a value from those of its inputs."""
        if len(given) != self.arity:
            raise InputError(where, len(given), f"are not the {self.arity} inputs of {value.op}", "Give that many.")
        return self.rule(where, value, given)


def expect_operator(where: str, op: str) -> None:
    """Refuse the name of an unknown operator."""
    if op not in OPERATORS:
        raise InputError(where, op, "is no operator of graph programs", f"Use one of: {', '.join(sorted(OPERATORS))}.")


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Broadcast two shapes, if one is the beginning of the other; else None."""
    short, long = sorted((a, b), key=len)
    return long if long[: len(short)] == short else None


def _refuse(where: str, value: Value, given: Sequence[Typed], remedy: str) -> InputError:
    shown = ", ".join(f"{t.space} {t.shape}" for t in given)
    return InputError(where, shown, f"is not what {value.op} takes", remedy)


def _given(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    allowed = GIVEN_SPACES[value.op]
    if value.space not in allowed:
        raise InputError(where, value.space, f"is no space of a {value.op}", f"Use one of: {', '.join(allowed)}.")
    return Typed(value.shape or (), value.space)


def _seen(of: tuple[Space, ...], to: Space) -> Rule:
    def rule(where: str, value: Value, given: Sequence[Typed]) -> Typed:
        if given[0].space not in of:
            raise _refuse(where, value, given, f"Give a value of {' or '.join(of)}.")
        return Typed(given[0].shape, to)

    return rule


def _spread(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if value.space is None or not is_coarser(x.space, value.space):
        raise _refuse(where, value, given, f"Spread to a finer space than that, not to {value.space}.")
    return Typed(x.shape, value.space)


def _is_weight(x: Typed) -> bool:
    return x.space in GIVEN_SPACES["parameter"]


def _of_one(shape: Callable[[Shape, int], Shape | None], remedy: str) -> Rule:
    """Rule of an operator with one input; ``shape(shape of the input, count)`` is None where the two do not fit."""

    def rule(where: str, value: Value, given: Sequence[Typed]) -> Typed:
        (x,) = given
        takes = _is_weight(x) or value.op not in ("transpose", "merge_heads")
        found = shape(x.shape, value.count or 0) if takes else None
        if found is None:
            raise _refuse(where, value, given, remedy.format(count=value.count))
        return Typed(found, x.space)

    return rule


def _of_two(shape: Callable[[Shape, Shape], Shape | None], remedy: str, weights: int = 0) -> Rule:
    """Rule of an operator with two inputs, the last ``weights`` of which must be weights."""

    def rule(where: str, value: Value, given: Sequence[Typed]) -> Typed:
        a, b = given
        found = shape(a.shape, b.shape) if all(map(_is_weight, given[2 - weights :])) else None
        if found is None:
            raise _refuse(where, value, given, remedy)
        return Typed(found, join((a.space, b.space)))

    return rule


def _stretch(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    """Rule of ``part`` and ``pad``: of the longer vector, the shorter one begins at the value's number."""
    (x,) = given
    start, is_part = int(value.number or 0), value.op == "part"
    if x.shape and value.count and start >= 0:
        short, long = (value.count, x.shape[-1]) if is_part else (x.shape[-1], value.count)
        if start + short <= long:
            return Typed((*x.shape[:-1], value.count), x.space)
    remedy = "Give vectors that have such a part." if is_part else "Give vectors that fit into that many from there on."
    raise _refuse(where, value, given, remedy)


def _map(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    shape = given[0].shape
    if len(given) == 2:
        found = broadcast(shape, given[1].shape)
        if found is None:
            raise _refuse(where, value, given, "Give rows of one shape, or numbers for each row or head of the other.")
        shape = found
    return Typed(shape, join(x.space for x in given))


def _concat_shape(a: Shape, b: Shape) -> Shape | None:
    fits = a and len(a) == len(b) and a[:-1] == b[:-1]
    return (*a[:-1], a[-1] + b[-1]) if fits else None


def linear_shape(x: Shape, weight: Shape) -> Shape | None:
    """Shape of the result of ``linear``; None where the two do not fit."""
    if not x or len(weight) < 2 or x[-1] != weight[-2] or len(x) > 2:
        return None
    if len(weight) == 2:
        return (*x[:-1], weight[-1])
    return (weight[0], weight[-1]) if len(x) == 1 or x[0] == weight[0] else None


def dot_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the result of ``dot``; None where the two do not fit."""
    short, long = sorted((a, b), key=len)
    return long[:-1] if short and len(long) <= 2 and long[len(long) - len(short) :] == short else None


def fold_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the result of ``fold``; None where the two do not fit."""
    if len(a) == 2 and len(b) == 2 and a[-1] == b[0]:
        return (a[0], b[1])
    fits = (len(a) == 2 and len(b) == 1) or (len(a) == 3 and len(b) == 2 and a[0] == b[0])
    return a[:-1] if fits and a[-1] == b[-1] else None


def _aggregate(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if value.over is None or value.space is None or value.reduce is None:
        raise InputError(where, value.op, "lacks over, space or reduce", "State all three.")
    if not is_coarser(x.space, value.over) or not is_coarser(value.space, value.over):
        raise _refuse(where, value, given, f"{value.over} rows must each have one row of it and of {value.space}.")
    return Typed(x.shape, value.space)


def outer_shape(x: Shape, y: Shape, shared: bool) -> Shape | None:
    """Shape of the result of ``outer``; None where the two do not fit."""
    if len(x) == 1:
        return (x[0], y[0]) if len(y) == 1 else (y[0], x[0], y[1]) if len(y) == 2 else None
    if len(x) != 2 or len(y) != 2 or x[0] != y[0]:
        return None
    return (x[1], y[1]) if shared else (x[0], x[1], y[1])


def _outer(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    x, y = given
    if value.over is None or value.space not in GIVEN_SPACES["parameter"]:
        raise InputError(where, value.space, "is no space of weights, or over is missing", "State both.")
    shape = outer_shape(x.shape, y.shape, value.count is not None)
    fits = all(is_coarser(space, value.over) for space in (x.space, y.space, value.space))
    if shape is None or not fits:
        raise _refuse(where, value, given, f"Give rows of {value.over}, as linear takes and makes them.")
    return Typed(shape, value.space)


# Sort, shape of the result by the input's shape and the value's count, and what to give instead.
_OF_ONE: dict[str, tuple[str, Callable[[Shape, int], Shape | None], str]] = {
    "split_heads": (
        "view",
        lambda x, count: (count, x[0] // count) if len(x) == 1 and count and not x[0] % count else None,
        "Give vectors that {count} heads can share.",
    ),
    "join_heads": ("view", lambda x, _: (x[0] * x[1],) if len(x) == 2 else None, "Give a vector for each head."),
    "transpose": ("view", lambda x, _: (*x[:-2], x[-1], x[-2]) if len(x) >= 2 else None, "Give a weight."),
    "merge_heads": ("view", lambda x, _: (x[0] * x[2], x[1]) if len(x) == 3 else None, "Give a weight."),
    "row_sum": ("row", lambda x, _: x[:-1] if x else None, "Give vectors."),
    "head_sum": ("row", lambda x, _: x[1:] if len(x) == 2 else None, "Give a vector for each head."),
    "repeat_heads": (
        "row",
        lambda x, count: (count, *x) if len(x) == 1 and count else None,
        "Give a vector, and how many heads.",
    ),
    "repeat_last": (
        "row",
        lambda x, count: (*x, count) if len(x) <= 1 and count else None,
        "Give a number for each row or head, and how many times.",
    ),
}
OPERATORS: dict[str, OperatorKind] = {
    **{op: OperatorKind("given", 0, _given) for op in GIVEN_SPACES},
    "source": OperatorKind("view", 1, _seen(("node",), "source")),
    "target": OperatorKind("view", 1, _seen(("node",), "target")),
    "as_node": OperatorKind("view", 1, _seen(("source", "target"), "node")),
    "spread": OperatorKind("view", 1, _spread),
    **{op: OperatorKind(sort, 1, _of_one(shape, remedy)) for op, (sort, shape, remedy) in _OF_ONE.items()},
    **{op: OperatorKind("map", 2, _map) for op in ("add", "sub", "mul", "div", "equal")},
    **{
        op: OperatorKind("map", 1, _map)
        for op in (
            *("neg", "exp", "log", "relu", "leaky_relu", "elu", "gelu", "gelu_slope", "sigmoid", "tanh"),
            *("reciprocal", "step", "scale", "shift"),
        )
    },
    "concat": OperatorKind("row", 2, _of_two(_concat_shape, "Give vectors with the same heads.")),
    "linear": OperatorKind(
        "row", 2, _of_two(linear_shape, "Give rows (K,) or (H, K), and a weight (K, M) or (H, K, M).", weights=1)
    ),
    "dot": OperatorKind("row", 2, _of_two(dot_shape, "Give vectors of one length, with the same heads.")),
    "part": OperatorKind("row", 1, _stretch),
    "pad": OperatorKind("row", 1, _stretch),
    "fold": OperatorKind("weight", 2, _of_two(fold_shape, "Give weights that can be multiplied.", weights=2)),
    "aggregate": OperatorKind("aggregate", 1, _aggregate),
    "outer": OperatorKind("outer", 2, _outer),
}
