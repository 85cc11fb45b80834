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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadmaster.errors import InputError
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space, is_coarser, join
from loadmaster.models.graph.value import Value

Shape = tuple[int, ...]
GIVEN_SPACES: dict[str, tuple[Space, ...]] = {
    "feature": ("node", "edge"),
    "parameter": WEIGHT_SPACES,
    "degree": ("source", "target", "target_pair"),
    "gradient": ("node",),
}


@dataclass(frozen=True)
class Typed:
    """Shape and space of a value, derived from its operator.

    Attributes:
        shape: of a row.
        space: the space that its rows belong to.
    """

    shape: Shape
    space: Space

    @property
    def numbers(self) -> int:
        """Number of elements in a row."""
        found = 1
        for extent in self.shape:
            found *= extent
        return found


Rule = Callable[[str, "Value", Sequence[Typed]], Typed]


@dataclass(frozen=True)
class OperatorKind:
    """Operator of graph programs, with its typing rule.

    Attributes:
        sort: ``given``, ``view``, ``map`` (each number of a row by itself), ``row`` (a row by itself: products, sums in
            it), ``aggregate``, ``outer`` or ``weight`` (of weights alone).
        arity: number of inputs.
        rule: shape and space of its result; raises for inputs that it cannot take.
    """

    sort: str
    arity: int
    rule: Rule

    def typed(self, where: str, value: Value, given: Sequence[Typed]) -> Typed:
        """Derive shape and space of a value from those of its inputs.

        Raises:
            InputError: naming the value.
        """
        if len(given) != self.arity:
            raise InputError(where, len(given), f"are not the {self.arity} inputs of {value.op}", "Give that many.")
        return self.rule(where, value, given)


def expect_operator(where: str, op: str) -> None:
    """Refuse the name of an unknown operator.

    Raises:
        InputError: naming it.
    """
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


def _split_heads(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if len(x.shape) != 1 or not value.count or x.shape[0] % value.count:
        raise _refuse(where, value, given, f"Give vectors that {value.count} heads can share.")
    return Typed((value.count, x.shape[0] // value.count), x.space)


def _join_heads(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if len(x.shape) != 2:
        raise _refuse(where, value, given, "Give a vector for each head.")
    return Typed((x.numbers,), x.space)


def _weight_view(shape: Callable[[Shape], Shape | None]) -> Rule:
    def rule(where: str, value: Value, given: Sequence[Typed]) -> Typed:
        found = shape(given[0].shape) if _is_weight(given[0]) else None
        if found is None:
            raise _refuse(where, value, given, "Give a weight.")
        return Typed(found, given[0].space)

    return rule


def _is_weight(x: Typed) -> bool:
    return x.space in GIVEN_SPACES["parameter"]


def _map(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    shape = given[0].shape
    if len(given) == 2:
        found = broadcast(shape, given[1].shape)
        if found is None:
            raise _refuse(where, value, given, "Give rows of one shape, or numbers for each row or head of the other.")
        shape = found
    return Typed(shape, join(x.space for x in given))


def _concat(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    a, b = given
    if not a.shape or len(a.shape) != len(b.shape) or a.shape[:-1] != b.shape[:-1]:
        raise _refuse(where, value, given, "Give vectors with the same heads.")
    return Typed((*a.shape[:-1], a.shape[-1] + b.shape[-1]), join((a.space, b.space)))


def linear_shape(x: Shape, weight: Shape) -> Shape | None:
    """Shape of the result of ``linear``; None where the two do not fit."""
    if not x or len(weight) < 2 or x[-1] != weight[-2] or len(x) > 2:
        return None
    if len(weight) == 2:
        return (*x[:-1], weight[-1])
    return (weight[0], weight[-1]) if len(x) == 1 or x[0] == weight[0] else None


def _linear(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    x, weight = given
    shape = linear_shape(x.shape, weight.shape) if _is_weight(weight) else None
    if shape is None:
        raise _refuse(where, value, given, "Give rows (K,) or (H, K), and a weight (K, M) or (H, K, M).")
    return Typed(shape, join((x.space, weight.space)))


def dot_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the result of ``dot``; None where the two do not fit."""
    short, long = sorted((a, b), key=len)
    return long[:-1] if short and len(long) <= 2 and long[len(long) - len(short) :] == short else None


def _dot(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    shape = dot_shape(given[0].shape, given[1].shape)
    if shape is None:
        raise _refuse(where, value, given, "Give vectors of one length, with the same heads.")
    return Typed(shape, join(x.space for x in given))


def _row_sum(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if not x.shape:
        raise _refuse(where, value, given, "Give vectors.")
    return Typed(x.shape[:-1], x.space)


def _head_sum(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if len(x.shape) != 2:
        raise _refuse(where, value, given, "Give a vector for each head.")
    return Typed(x.shape[1:], x.space)


def _part(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    start = int(value.number or 0)
    if not x.shape or not value.count or start < 0 or start + value.count > x.shape[-1]:
        raise _refuse(where, value, given, "Give vectors that have such a part.")
    return Typed((*x.shape[:-1], value.count), x.space)


def _pad(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    start = int(value.number or 0)
    if not x.shape or not value.count or start < 0 or start + x.shape[-1] > value.count:
        raise _refuse(where, value, given, "Give vectors that fit into that many from there on.")
    return Typed((*x.shape[:-1], value.count), x.space)


def _repeat_heads(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if len(x.shape) != 1 or not value.count:
        raise _refuse(where, value, given, "Give a vector, and how many heads.")
    return Typed((value.count, *x.shape), x.space)


def _repeat_last(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    (x,) = given
    if len(x.shape) > 1 or not value.count:
        raise _refuse(where, value, given, "Give a number for each row or head, and how many times.")
    return Typed((*x.shape, value.count), x.space)


def fold_shape(a: Shape, b: Shape) -> Shape | None:
    """Shape of the result of ``fold``; None where the two do not fit."""
    if len(a) == 2 and len(b) == 2 and a[-1] == b[0]:
        return (a[0], b[1])
    fits = (len(a) == 2 and len(b) == 1) or (len(a) == 3 and len(b) == 2 and a[0] == b[0])
    return a[:-1] if fits and a[-1] == b[-1] else None


def _fold(where: str, value: Value, given: Sequence[Typed]) -> Typed:
    shape = fold_shape(given[0].shape, given[1].shape) if all(map(_is_weight, given)) else None
    if shape is None:
        raise _refuse(where, value, given, "Give weights that can be multiplied.")
    return Typed(shape, join(x.space for x in given))


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


def _merged(shape: Shape) -> Shape | None:
    return (shape[0] * shape[2], shape[1]) if len(shape) == 3 else None


def _transposed(shape: Shape) -> Shape | None:
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) >= 2 else None


OPERATORS: dict[str, OperatorKind] = {
    **{op: OperatorKind("given", 0, _given) for op in GIVEN_SPACES},
    "source": OperatorKind("view", 1, _seen(("node",), "source")),
    "target": OperatorKind("view", 1, _seen(("node",), "target")),
    "as_node": OperatorKind("view", 1, _seen(("source", "target"), "node")),
    "spread": OperatorKind("view", 1, _spread),
    "split_heads": OperatorKind("view", 1, _split_heads),
    "join_heads": OperatorKind("view", 1, _join_heads),
    "transpose": OperatorKind("view", 1, _weight_view(_transposed)),
    "merge_heads": OperatorKind("view", 1, _weight_view(_merged)),
    **{op: OperatorKind("map", 2, _map) for op in ("add", "sub", "mul", "div", "equal")},
    **{
        op: OperatorKind("map", 1, _map)
        for op in (
            *("neg", "exp", "log", "relu", "leaky_relu", "elu", "gelu", "gelu_slope", "sigmoid", "tanh"),
            *("reciprocal", "step", "scale", "shift"),
        )
    },
    "concat": OperatorKind("row", 2, _concat),
    "linear": OperatorKind("row", 2, _linear),
    "dot": OperatorKind("row", 2, _dot),
    "row_sum": OperatorKind("row", 1, _row_sum),
    "head_sum": OperatorKind("row", 1, _head_sum),
    "part": OperatorKind("row", 1, _part),
    "pad": OperatorKind("row", 1, _pad),
    "repeat_heads": OperatorKind("row", 1, _repeat_heads),
    "repeat_last": OperatorKind("row", 1, _repeat_last),
    "fold": OperatorKind("weight", 2, _fold),
    "aggregate": OperatorKind("aggregate", 1, _aggregate),
    "outer": OperatorKind("outer", 2, _outer),
}
