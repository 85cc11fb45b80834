"""Backward pass of a program, on the program itself: more values, by the same operators ([Wu24] section 3.3.5).

A value is a function on its space, and so is its gradient. An operator that makes rows of a finer space than one of its
inputs has reads a row of that input several times: the gradient is the sum of what those rows ask for, an ``aggregate``
from the operator's space to the input's. So the gradient of a message that is kept once for each source node and
relation is summed once for each, before it goes through the weight.

Example. ``m = linear(source(h), W)`` on source_pair, ``out = as_node(aggregate(m, edge -> target))``. With g for out:

    dm = aggregate(target(g), edge -> source_pair)
    dW = outer(source(h), dm, source_pair -> relation)
    dh = as_node(aggregate(linear(dm, transpose(W)), source_pair -> source))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.graph.operators import Shape, Value
from loadmaster.models.graph.program import Builder, Program
from loadmaster.models.graph.spaces import Space


def with_backward(program: Program, of: Sequence[int] | None = None) -> Program:
    """Extend a program by its backward pass: each output has a ``gradient`` given, each of the features and parameters
    numbered in ``of`` gets one. None: all parameters, and the features of nodes and edges.

    Raises:
        InputError: the program has a backward pass, an output is not a value of nodes, or something else is in ``of``.
    """
    if program.forward_count != len(program.values):
        raise InputError("program", "given", "has a backward pass already", "Give the forward pass.")
    for n in program.outputs:
        if program.types[n].space != "node":
            name, space = program.values[n].name, program.types[n].space
            raise InputError("program.outputs", name, f"is of {space}", "Aggregate it to nodes.")
    named = {**program.given("parameter"), **program.given("feature")}
    wanted = [*named.values()] if of is None else list(of)
    if not set(wanted) <= set(named.values()):
        raise InputError(
            "of", wanted, "names more than features and parameters", f"Use some of: {sorted(named.values())}."
        )
    return _Backward(program, wanted).program()


class _Backward:
    def __init__(self, forward: Program, wanted: Sequence[int]) -> None:
        self.forward, self.wanted = forward, wanted
        self.b = Builder.of(forward)
        self.found: dict[int, int] = {}
        self.needed = self._on_the_way()

    def program(self) -> Program:
        count = len(self.forward.values)
        for n in dict.fromkeys(self.forward.outputs):
            name = f"d_{self.forward.values[n].name}"
            shape = self.forward.types[n].shape
            self.add_term(n, self.b.add(Value(name, "gradient", space="node", shape=shape)))
        for n in reversed(range(count)):
            value = self.forward.values[n]
            if n in self.found and n in self.needed and value.inputs:
                _RULES[value.op](self, n, value, self.found[n])
        gradients = [(n, self._for_every_row(n)) for n in self.wanted if n in self.found]
        return self.b.program(self.forward.outputs, count, gradients)

    def _for_every_row(self, n: int) -> int:
        """Gradient of a value with a row for each of its rows, also where edges of one node or pair share a row."""
        found = self.found[n]
        return found if self.space(found) == self.space(n) else self.op("spread", found, space=self.space(n))

    def _on_the_way(self) -> set[int]:
        found = set(self.wanted)
        for n, value in enumerate(self.forward.values):
            if found.intersection(value.inputs):
                found.add(n)
        return found

    def add_term(self, n: int, gradient: int) -> None:
        self.found[n] = gradient if n not in self.found else self.op("add", self.found[n], gradient)

    def op(self, op: str, *inputs: int, **more: Any) -> int:
        return self.b.made(op, *inputs, **more)

    def space(self, n: int) -> Space:
        return self.b.types[n].space

    def shape(self, n: int) -> Shape:
        return self.b.types[n].shape

    def give(self, n: int, gradient: int, over: Space) -> None:
        """Add a term to a value's gradient, which has a row for each row of ``over``; rows of one target are summed."""
        if n not in self.needed:
            return
        while len(self.shape(gradient)) > len(self.shape(n)):
            gradient = self.op("row_sum", gradient)
        if over != self.space(n):
            gradient = self.op("aggregate", gradient, over=over, space=self.space(n), reduce="sum")
        self.add_term(n, gradient)


Backward = Callable[[_Backward, int, Value, int], None]
# What the gradient of the only input is: (builder, number of the value, value, its gradient, the input) -> a number.
Made = Callable[[_Backward, int, Value, int, int], int]


def _given(made: Made) -> Backward:
    def rule(b: _Backward, n: int, value: Value, g: int) -> None:
        (x,) = value.inputs
        b.give(x, made(b, n, value, g, x), b.space(n))

    return rule


def _map(slope: Callable[[_Backward, int, Value, int], int]) -> Backward:
    """Rule of an operator on each number: the gradient times the slope, computed from the value and its input."""
    return _given(lambda b, n, value, g, x: b.op("mul", g, slope(b, n, value, x)))


def _view(made: Made) -> Backward:
    def rule(b: _Backward, n: int, value: Value, g: int) -> None:
        (x,) = value.inputs
        b.add_term(x, made(b, n, value, g, x))

    return rule


def _same(b: _Backward, n: int, value: Value, g: int) -> None:
    for i in value.inputs:
        b.give(i, g, b.space(n))


def _sub(b: _Backward, n: int, value: Value, g: int) -> None:
    b.give(value.inputs[0], g, b.space(n))
    b.give(value.inputs[1], b.op("scale", g, number=-1.0), b.space(n))


def _mul(b: _Backward, n: int, value: Value, g: int) -> None:
    x, y = value.inputs
    _times(b, x, g, y, b.space(n))
    _times(b, y, g, x, b.space(n))


def _times(b: _Backward, of: int, g: int, other: int, over: Space) -> None:
    """Give a factor its gradient, g times the other factor; a dot product where the factor is a number for each row."""
    is_number = len(b.shape(of)) + 1 == len(b.shape(g)) == len(b.shape(other))
    b.give(of, b.op("dot" if is_number else "mul", g, other), over)


def _div(b: _Backward, n: int, value: Value, g: int) -> None:
    x, y = value.inputs
    by_y = b.op("div", g, y)
    b.give(x, by_y, b.space(n))
    if y in b.needed:
        _times(b, y, b.op("scale", by_y, number=-1.0), n, b.space(n))


def _concat(b: _Backward, n: int, value: Value, g: int) -> None:
    start = 0
    for i in value.inputs:
        count = b.shape(i)[-1]
        b.give(i, b.op("part", g, number=float(start), count=count), b.space(n))
        start += count


def _linear(b: _Backward, n: int, value: Value, g: int) -> None:
    x, weight = value.inputs
    heads = len(b.shape(weight)) == 3
    if x in b.needed:
        if heads and len(b.shape(x)) == 1:
            dx = b.op("linear", b.op("join_heads", g), b.op("merge_heads", weight))
        else:
            dx = b.op("linear", g, b.op("transpose", weight))
        b.give(x, dx, b.space(n))
    if weight in b.needed:
        shared = len(b.shape(x)) if len(b.shape(x)) == 2 and not heads else None
        dw = b.op("outer", x, g, over=b.space(n), space=b.space(weight), count=shared)
        b.give(weight, dw, b.space(weight))


def _dot(b: _Backward, n: int, value: Value, g: int) -> None:
    for of, other in (value.inputs, value.inputs[::-1]):
        if of not in b.needed:
            continue
        heads = len(b.shape(of)) - len(b.shape(other))
        if heads > 0:
            other = b.op("repeat_heads", other, count=b.shape(of)[0])
        found = b.op("mul", g, other)
        b.give(of, b.op("head_sum", found) if heads < 0 else found, b.space(n))


def _fold(b: _Backward, n: int, value: Value, g: int) -> None:
    weight, w = value.inputs
    if len(b.shape(weight)) == 2 and len(b.shape(w)) == 2:
        b.give(weight, b.op("fold", g, b.op("transpose", w)), b.space(n))
    else:
        b.give(weight, b.op("outer", g, w, over=b.space(n), space=b.space(n)), b.space(n))
    b.give(w, b.op("fold", b.op("transpose", weight), g), b.space(n))


def _aggregate(b: _Backward, n: int, value: Value, g: int) -> None:
    (x,) = value.inputs
    assert value.over is not None
    if value.reduce == "mean":
        g = b.op("div", g, b.b.add(Value(f"degree_{value.space}", "degree", space=value.space, shape=())))
    elif value.reduce == "logsumexp":
        g = b.op("mul", g, b.op("exp", b.op("sub", x, n)))
    elif value.reduce in ("max", "min"):
        # Ties share, as in PyTorch's amax.
        chosen = b.op("equal", x, n)
        count = b.op("aggregate", chosen, over=value.over, space=value.space, reduce="sum")
        g = b.op("mul", chosen, b.op("div", g, count))
    b.give(x, g, value.over)


def _of_leaky_relu(b: _Backward, n: int, value: Value, x: int) -> int:
    slope = value.number or 0.0
    return b.op("shift", b.op("scale", b.op("step", x), number=1.0 - slope), number=slope)


_RULES: dict[str, Backward] = {
    "add": _same,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _given(lambda b, n, value, g, x: b.op("scale", g, number=-1.0)),
    "scale": _given(lambda b, n, value, g, x: b.op("scale", g, number=value.number)),
    "shift": _same,
    "exp": _map(lambda b, n, value, x: n),
    "log": _map(lambda b, n, value, x: b.op("reciprocal", x)),
    "relu": _map(lambda b, n, value, x: b.op("step", x)),
    "leaky_relu": _map(_of_leaky_relu),
    # exp(min(x, 0)): 1 above 0, e^x below.
    "elu": _map(lambda b, n, value, x: b.op("exp", b.op("neg", b.op("relu", b.op("neg", x))))),
    "gelu": _map(lambda b, n, value, x: b.op("gelu_slope", x)),
    "sigmoid": _map(lambda b, n, value, x: b.op("mul", n, b.op("shift", b.op("neg", n), number=1.0))),
    "tanh": _map(lambda b, n, value, x: b.op("shift", b.op("neg", b.op("mul", n, n)), number=1.0)),
    "reciprocal": _map(lambda b, n, value, x: b.op("neg", b.op("mul", n, n))),
    "concat": _concat,
    "linear": _linear,
    "dot": _dot,
    "part": _given(lambda b, n, value, g, x: b.op("pad", g, number=value.number, count=b.shape(x)[-1])),
    "pad": _given(lambda b, n, value, g, x: b.op("part", g, number=value.number, count=b.shape(x)[-1])),
    "row_sum": _given(lambda b, n, value, g, x: b.op("repeat_last", g, count=b.shape(x)[-1])),
    "head_sum": _given(lambda b, n, value, g, x: b.op("repeat_heads", g, count=b.shape(x)[0])),
    "repeat_heads": _given(lambda b, n, value, g, x: b.op("head_sum", g)),
    "repeat_last": _given(lambda b, n, value, g, x: b.op("row_sum", g)),
    "fold": _fold,
    "aggregate": _aggregate,
    "source": _view(lambda b, n, value, g, x: b.op("as_node", g)),
    "target": _view(lambda b, n, value, g, x: b.op("as_node", g)),
    "as_node": _view(lambda b, n, value, g, x: b.op(b.space(x), g)),
    "spread": _same,
    "transpose": _view(lambda b, n, value, g, x: b.op("transpose", g)),
    "join_heads": _view(lambda b, n, value, g, x: b.op("split_heads", g, count=b.shape(x)[0])),
    "split_heads": _view(lambda b, n, value, g, x: b.op("join_heads", g)),
}
