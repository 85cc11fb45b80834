"""Capture of a layer, a short Python function over nodes, edges and relations, as a program.

    def rgat(nodes, edges, weights):
        message = edges.source(nodes.h) @ weights.W[edges.relation]
        score = dot(message, weights.s[edges.relation]) + dot(edges.target(nodes.h) @ weights.W[edges.relation], ...)
        return edges.sum(edges.softmax(leaky_relu(score, 0.2)) * message)

    program = traced(rgat, nodes={"h": 64}, weights={"W": per_relation(64, 64), ...})

The function is called once, with stand-ins that record what is done to them. Nothing in it depends on a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.graph.operators import Shape, Typed, Value
from loadmaster.models.graph.program import Builder, Program
from loadmaster.models.graph.spaces import Space, is_seen_from_edges

Extents = int | Sequence[int]


@dataclass(frozen=True)
class Weight:
    """Weight that a layer declares."""

    space: Space
    shape: Shape


def shared(*shape: int) -> Weight:
    """Declare one weight for all nodes, edges and relations."""
    return Weight("one", shape)


def per_relation(*shape: int) -> Weight:
    """Declare a weight for each relation."""
    return Weight("relation", shape)


def per_node_type(*shape: int) -> Weight:
    """Declare a weight for each node type."""
    return Weight("node_type", shape)


class Traced:
    """Stand-in for a value of the program that is being recorded."""

    __array_priority__ = 1000  # numbers of NumPy leave arithmetic to this class

    def __init__(self, builder: Builder, number: int) -> None:
        self.builder, self.number = builder, number

    @property
    def typed(self) -> Typed:
        """Shape of a row, and row space of the value."""
        return self.builder.types[self.number]

    def made(self, op: str, *others: Traced, **more: Any) -> Traced:
        """Make another value from this one and others by an operator."""
        return Traced(self.builder, self.builder.made(op, self.number, *(o.number for o in others), **more))

    def heads(self, count: int) -> Traced:
        """Split vectors into heads: (H D,) becomes (H, D)."""
        return self.made("split_heads", count=count)

    def joined(self) -> Traced:
        """Join the heads of vectors: (H, D) becomes (H D,)."""
        return self.made("join_heads")

    def __getitem__(self, index: object) -> Traced:
        if not isinstance(index, _Index):
            remedy = "Index weights by edges.relation or nodes.type; reshape vectors with .heads(count)."
            raise InputError("program", repr(index), "is no index of a weight", remedy)
        if self.builder.values[self.number].op != "parameter" or self.typed.space != index.space:
            name = self.builder.values[self.number].name
            raise InputError(
                "program", name, f"is no weight for each {index.space}", "Declare it so, or leave the index out."
            )
        return self

    def __matmul__(self, weight: Traced) -> Traced:
        return self.made("linear", weight)

    def __add__(self, other: Traced | float) -> Traced:
        return self.made("shift", number=float(other)) if isinstance(other, int | float) else self.made("add", other)

    __radd__ = __add__

    def __sub__(self, other: Traced | float) -> Traced:
        return self + -other if isinstance(other, int | float) else self.made("sub", other)

    def __rsub__(self, other: float) -> Traced:
        return -self + other

    def __mul__(self, other: Traced | float) -> Traced:
        return self.made("scale", number=float(other)) if isinstance(other, int | float) else self.made("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Traced | float) -> Traced:
        return self * (1.0 / other) if isinstance(other, int | float) else self.made("div", other)

    def __rtruediv__(self, other: float) -> Traced:
        return self.made("reciprocal") * other

    def __neg__(self) -> Traced:
        return self.made("neg")

    def __bool__(self) -> bool:
        remedy = "Write what holds for every row, with relu, leaky_relu or step."
        raise InputError("program", "a condition", "depends on a value, which a program does not know", remedy)


@dataclass(frozen=True)
class _Index:
    space: Space


class _Named:
    """Features or weights by name."""

    def __init__(self, what: str, found: Mapping[str, Traced]) -> None:
        self._what, self._found = what, found

    def __getattr__(self, name: str) -> Traced:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._found:
            known = ", ".join(self._found) or "none"
            raise InputError("program", name, f"is not among the {self._what}", f"Declare it; there are: {known}.")
        return self._found[name]

    __getitem__ = __getattr__


class Nodes(_Named):
    """Features of nodes; ``nodes.type`` indexes weights for each node type."""

    type = _Index("node_type")


class Edges(_Named):
    """Features of edges, node values seen from edges, and sums over the edges that end at a node."""

    relation = _Index("relation")

    def __init__(self, builder: Builder, found: Mapping[str, Traced]) -> None:
        super().__init__("features of edges", found)
        self._builder = builder

    def source(self, x: Traced) -> Traced:
        """Read a node's value at the edges that leave it."""
        return x.made("source")

    def target(self, x: Traced) -> Traced:
        """Read a node's value at the edges that end at it."""
        return x.made("target")

    def in_degree(self, of_relation: bool = False) -> Traced:
        """Number of edges that end at the edge's target: all, or those of the edge's relation."""
        space: Space = "target_pair" if of_relation else "target"
        return Traced(self._builder, self._builder.add(Value(f"degree_{space}", "degree", space=space, shape=())))

    def sum(self, x: Traced) -> Traced:
        """Sum over the edges that end at each node."""
        return self._aggregate(x, "sum")

    def mean(self, x: Traced) -> Traced:
        """Mean over the edges that end at each node; 0 where no edge ends."""
        return self._aggregate(x, "mean")

    def max(self, x: Traced) -> Traced:
        """Maximum over the edges that end at each node; 0 where no edge ends."""
        return self._aggregate(x, "max")

    def min(self, x: Traced) -> Traced:
        """Minimum over the edges that end at each node; 0 where no edge ends."""
        return self._aggregate(x, "min")

    def softmax(self, score: Traced) -> Traced:
        """Softmax of a score over the edges that end at the same node."""
        return (score - self._over_edges(score, "logsumexp")).made("exp")

    def _aggregate(self, x: Traced, reduce: str) -> Traced:
        return self._over_edges(x, reduce).made("as_node")

    def _over_edges(self, x: Traced, reduce: str) -> Traced:
        if not is_seen_from_edges(x.typed.space):
            remedy = "Take it to edges by edges.source(...) or edges.target(...) first."
            raise InputError("program", x.typed.space, "is no value of edges", remedy)
        return x.made("aggregate", over="edge", space="target", reduce=reduce)


def traced(
    layer: Callable[[Nodes, Edges, Any], Traced | Sequence[Traced]],
    *,
    nodes: Mapping[str, Extents],
    weights: Mapping[str, Weight] | None = None,
    edges: Mapping[str, Extents] | None = None,
) -> Program:
    """Capture a layer's forward pass as a program.

    Args:
        layer: takes nodes, edges and weights; returns one value of nodes, or several.
        nodes, edges: features by name, with the shape of a row; () is a number.

    Raises:
        InputError: the function does what no program can, or returns something else than values of nodes; two inputs
            have one name, or an input has an invalid shape.
    """
    builder = Builder()

    def given(op: str, name: str, space: Space, shape: Extents) -> Traced:
        extents = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if not all(isinstance(extent, int) and extent > 0 for extent in extents):
            raise InputError(name, extents, "is no shape of a row", "Give whole numbers >= 1; () is a number.")
        return Traced(builder, builder.add(Value(name, op, space=space, shape=extents)))

    names = [*nodes, *(edges or {}), *(weights or {})]
    for name in names:
        if names.count(name) > 1:
            raise InputError("layer", name, "is the name of several inputs", "Give each feature and weight its own.")
    of_nodes = {name: given("feature", name, "node", shape) for name, shape in nodes.items()}
    of_edges = {name: given("feature", name, "edge", shape) for name, shape in (edges or {}).items()}
    of_weights = {name: given("parameter", name, w.space, w.shape) for name, w in (weights or {}).items()}
    try:
        result = layer(Nodes("features of nodes", of_nodes), Edges(builder, of_edges), _Named("weights", of_weights))
    except (TypeError, AttributeError) as error:
        remedy = "Write it with the operators of loadmaster.executor.graph: relu, concat, dot and so on."
        raise InputError(
            "layer", getattr(layer, "__name__", "layer"), f"cannot be captured: {error}", remedy
        ) from error
    results = [*result] if isinstance(result, Sequence) and result else [result]
    numbers = []
    for one in results:
        if not isinstance(one, Traced) or one.typed.space != "node":
            found = one.typed.space if isinstance(one, Traced) else type(one).__name__
            raise InputError("layer", found, "is no value of nodes", "Return what edges.sum(...) or the like made.")
        numbers.append(one.number)
    return builder.program(numbers, len(builder.values))


def dot(a: Traced, b: Traced) -> Traced:
    """Dot product over the last dimension, for each row and head."""
    return a.made("dot", b)


def concat(a: Traced, b: Traced) -> Traced:
    """Concatenate along the last dimension, for each row and head."""
    return a.made("concat", b)


def _of_one(op: str) -> Callable[[Traced], Traced]:
    def made(x: Traced) -> Traced:
        return x.made(op)

    made.__doc__ = f"``{op}`` of every number."
    return made


relu, elu, gelu, sigmoid, tanh, exp, log = map(_of_one, ("relu", "elu", "gelu", "sigmoid", "tanh", "exp", "log"))


def leaky_relu(x: Traced, slope: float = 0.01) -> Traced:
    """Leaky ReLU of every number: x above 0, slope times x below."""
    return x.made("leaky_relu", number=slope)
