"""Programs of graph layers evaluated value by value in NumPy, every row of every value: the oracle of this kind.

It shares the list of operators with the package and nothing else: rows, gathers and reductions are written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.graph.operators import GIVEN, Value
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.spaces import Space

Array = NDArray[Any]
OF_NODES = ("node", "source", "target")


@dataclass(frozen=True)
class TinyGraph:
    """A graph as arrays.

    Attributes:
        source, target, relation: of each edge.
        node_type: of each node.
    """

    source: Array
    target: Array
    relation: Array
    node_type: Array
    relation_count: int
    type_count: int

    @cached_property
    def _keys(self) -> dict[str, dict[str, Array]]:
        """For each space, what the rows are found by: keys of its rows."""
        nodes = np.arange(len(self.node_type))
        found: dict[str, dict[str, Array]] = {
            "one": {},
            "relation": {"relation": np.arange(self.relation_count)},
            "node_type": {"node_type": np.arange(self.type_count)},
            "node": {"node": nodes, "node_type": self.node_type},
            "source": {"source": nodes},
            "target": {"target": nodes},
            "edge": {"source": self.source, "target": self.target, "relation": self.relation},
        }
        for end, of in (("source", self.source), ("target", self.target)):
            pairs, number = np.unique(np.stack([self.relation, of]), axis=1, return_inverse=True)
            found[f"{end}_pair"] = {"relation": pairs[0], end: pairs[1]}
            found["edge"][f"{end}_pair"] = number.reshape(-1)
        return found

    def rows(self, space: Space) -> int:
        """How many rows a space has."""
        return 1 if space == "one" else len(next(iter(self._keys[space].values())))

    def index(self, fine: Space, coarse: Space) -> Array:
        """The row of ``coarse`` of every row of ``fine``."""
        if fine == coarse or (fine in OF_NODES and coarse in OF_NODES):
            return np.arange(self.rows(fine))
        return np.zeros(self.rows(fine), dtype=np.int64) if coarse == "one" else self._keys[fine][coarse]


def evaluate(program: Program, graph: TinyGraph, given: Mapping[str, Array]) -> list[Array]:
    """Every value of a program, [rows of its space, *shape].

    Args:
        given: features, parameters and gradients by name, [rows, *shape]; a weight for all may lack the rows.
    """
    found: list[Array] = []
    with np.errstate(all="ignore"):
        for n, value in enumerate(program.values):
            shape, space = program.types[n].shape, program.types[n].space
            if value.op == "degree":
                row = graph.index("edge", space)
                # No edge sees the degree of a node without edges, and a quotient by 0 would be no number.
                array = np.maximum(1.0, np.bincount(row, minlength=graph.rows(space)))
            elif value.op in GIVEN:
                array = np.asarray(given[value.name]).reshape(graph.rows(space), *shape)
            else:
                array = _made(program, graph, value, space, found)
            assert array.shape == (graph.rows(space), *shape), (value, array.shape, shape)
            found.append(array)
    return found


def results(program: Program, graph: TinyGraph, given: Mapping[str, Array]) -> tuple[list[Array], dict[str, Array]]:
    """Outputs, and gradients by the name of what they are for."""
    values = evaluate(program, graph, given)
    gradients = {program.values[of].name: values[gradient] for of, gradient in program.gradients}
    return [values[n] for n in program.outputs], gradients


def _made(program: Program, graph: TinyGraph, value: Value, space: Space, found: list[Array]) -> Array:
    at = value.over or space
    inputs = [found[i][graph.index(at, program.types[i].space)] for i in value.inputs]
    if value.op == "aggregate":
        return _aggregated(inputs[0], graph.index(at, space), graph.rows(space), value.reduce or "")
    if value.op == "outer":
        terms = _outer(*inputs, shared=value.count is not None)
        return _aggregated(terms, graph.index(at, space), graph.rows(space), "sum")
    return ROWWISE[value.op](value, *inputs)


def _aggregated(x: Array, row: Array, rows: int, reduce: str) -> Array:
    found = np.zeros((rows, *x.shape[1:]))
    for r in range(rows):
        of_row = x[row == r]
        if len(of_row):
            found[r] = REDUCED[reduce](of_row)
    return found


def _log_sum_exp(x: Array) -> Array:
    top = x.max(axis=0)
    return top + np.log(np.exp(x - top).sum(axis=0))


def _outer(x: Array, y: Array, shared: bool) -> Array:
    if x.ndim == 2:
        return x[:, :, None] * y[:, None, :] if y.ndim == 2 else x[:, None, :, None] * y[:, :, None, :]
    terms = x[:, :, :, None] * y[:, :, None, :]
    return terms.sum(axis=1) if shared else terms


def _alike(a: Array, b: Array) -> tuple[Array, Array]:
    """Numbers for each row or head beside vectors."""
    dimensions = max(a.ndim, b.ndim)
    return tuple(x.reshape(*x.shape, *(1,) * (dimensions - x.ndim)) for x in (a, b))  # type: ignore[return-value]


def _linear(value: Value, x: Array, weight: Array) -> Array:
    if weight.ndim == 3:
        return np.einsum("...k,...km->...m", x, weight if x.ndim == 2 else weight[:, None])
    return np.einsum("nk,nhkm->nhm" if x.ndim == 2 else "nhk,nhkm->nhm", x, weight)


def _dot(value: Value, a: Array, b: Array) -> Array:
    a, b = (x[:, None] if x.ndim < max(a.ndim, b.ndim) else x for x in (a, b))
    return (a * b).sum(axis=-1)


def _fold(value: Value, a: Array, b: Array) -> Array:
    if a.ndim == 3 and b.ndim == 3:
        return np.einsum("nkm,nmp->nkp", a, b)
    return (a * b[..., None, :]).sum(axis=-1)


def _padded(value: Value, x: Array) -> Array:
    found = np.zeros((*x.shape[:-1], value.count or 0))
    start = int(value.number or 0)
    found[..., start : start + x.shape[-1]] = x
    return found


def _of_two(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    return lambda value, a, b: function(*_alike(a, b))


def _same(value: Value, x: Array) -> Array:
    return x


_gauss = np.vectorize(lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))), otypes=[float])


REDUCED: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "min": lambda x: x.min(axis=0),
    "logsumexp": _log_sum_exp,
}

ROWWISE: dict[str, Callable[..., Array]] = {
    **{view: _same for view in ("source", "target", "as_node", "spread")},
    "split_heads": lambda value, x: x.reshape(len(x), value.count, -1),
    "join_heads": lambda value, x: x.reshape(len(x), -1),
    "transpose": lambda value, x: np.swapaxes(x, -1, -2),
    "merge_heads": lambda value, x: np.swapaxes(x, -1, -2).reshape(len(x), -1, x.shape[-2]),
    "add": _of_two(np.add),
    "sub": _of_two(np.subtract),
    "mul": _of_two(np.multiply),
    "div": _of_two(np.divide),
    "equal": _of_two(lambda a, b: (a == b).astype(float)),
    "neg": lambda value, x: -x,
    "exp": lambda value, x: np.exp(x),
    "log": lambda value, x: np.log(x),
    "relu": lambda value, x: np.maximum(x, 0),
    "leaky_relu": lambda value, x: np.where(x > 0, x, value.number * x),
    "elu": lambda value, x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda value, x: x * _gauss(x),
    "gelu_slope": lambda value, x: _gauss(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "sigmoid": lambda value, x: 1 / (1 + np.exp(-x)),
    "tanh": lambda value, x: np.tanh(x),
    "reciprocal": lambda value, x: 1 / x,
    "step": lambda value, x: (x > 0).astype(float),
    "scale": lambda value, x: value.number * x,
    "shift": lambda value, x: value.number + x,
    "concat": lambda value, a, b: np.concatenate([a, b], axis=-1),
    "linear": _linear,
    "dot": _dot,
    "row_sum": lambda value, x: x.sum(axis=-1),
    "head_sum": lambda value, x: x.sum(axis=1),
    "part": lambda value, x: x[..., int(value.number or 0) : int(value.number or 0) + value.count],
    "pad": _padded,
    "repeat_heads": lambda value, x: np.repeat(x[:, None], value.count, axis=1),
    "repeat_last": lambda value, x: np.repeat(x[..., None], value.count, axis=-1),
    "fold": _fold,
}
