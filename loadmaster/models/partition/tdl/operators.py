"""Descriptions of the operators of training steps, and the strategies that follow from them.

Where a description says less than a kernel needs, the indices that must stay whole are named: attention takes a whole
sequence, a mean divides by what it is given. What cannot be described (a lookup by number) is a table, with the reason.
"""

from __future__ import annotations

from functools import lru_cache

from loadmaster.models.partition.problem import Need, Signature, Strategy
from loadmaster.models.partition.tdl.discovery import Extents, strategies
from loadmaster.models.partition.tdl.language import (
    Called,
    Description,
    Element,
    Expression,
    Index,
    Max,
    Multiplied,
    Opaque,
    Reduced,
    Result,
    Sum,
    call,
    describe,
)

_SPACE = frozenset({"y", "x"})


def _signature(name: str, description: Description, extents: Extents | None = None) -> Signature:
    return Signature(name, strategies(description, extents))


def _table(name: str, *rows: tuple[str, str, str]) -> Signature:
    """Strategies by hand: (name, needs, results), parts with spaces between."""
    found = [Strategy(of, tuple(map(Need, needs.split())), tuple(made.split())) for of, needs, made in rows]
    return Signature(name, tuple(found))


@lru_cache
def product(equation: str) -> Signature:
    """A sum of products of two tensors, in the notation of ``einsum``: ``product("mk,kn->mn")``."""
    sources, result = equation.split("->")
    inputs = sources.split(",")
    element: Expression = Multiplied(
        *(Element(n, tuple(Index({letter: 1.0}) for letter in letters)) for n, letters in enumerate(inputs))
    )
    summed = tuple(dict.fromkeys(letter for letters in inputs for letter in letters if letter not in result))
    if summed:
        element = Reduced("sum", summed, element)
    return _signature(equation, Description(("a", "b"), (Result(tuple(result), element),)))


@lru_cache
def elementwise(inputs: int, rank: int) -> Signature:
    """A function of single elements of tensors of one shape."""
    indices = tuple(f"i{d}" for d in range(rank))
    at = tuple(Index({name: 1.0}) for name in indices)
    element = Called("function", tuple(Element(n, at) for n in range(inputs)))
    names = tuple(f"a{n}" for n in range(inputs))
    found = strategies(Description(names, (Result(indices, element),)))
    return Signature(f"elementwise {inputs}, rank {rank}", found or _nothing(inputs, 1), elementwise=True)


@lru_cache
def update(inputs: int, rank: int) -> Signature:
    """An optimizer: tensors of one shape, updated in place."""
    rows = tuple(Strategy(f"i{d}", (Need(f"S{d}"),) * inputs, ()) for d in range(rank))
    return Signature(f"update {inputs}, rank {rank}", rows or _nothing(inputs, 0), elementwise=True)


def _nothing(inputs: int, outputs: int) -> tuple[Strategy, ...]:
    """Strategies of an operator on a single number, which has no shares."""
    return (Strategy("number", (Need("R"),) * inputs, ("R",) * outputs, divides=False),)


@lru_cache
def conv2d(stride: int, padding: int, kernel: int) -> Signature:
    """Convolution of data [n, ci, y, x] with filters [co, ci, ky, kx]; space is not split."""
    return _signature(
        f"conv2d {kernel}x{kernel}/{stride}",
        describe(
            lambda data, filters: (
                lambda n, co, y, x: Sum(
                    lambda ci, ky, kx: (
                        data[n, ci, y * stride + ky - padding, x * stride + kx - padding] * filters[co, ci, ky, kx]
                    )
                )
            )
        ),
        Extents({"ky": kernel, "kx": kernel}, whole=_SPACE),
    )


@lru_cache
def conv2d_input_gradient(stride: int, padding: int, kernel: int) -> Signature:
    """Gradient of a convolution's data, from gradient [n, co, y, x] and filters."""
    return _signature(
        f"conv2d {kernel}x{kernel}/{stride}, input gradient",
        describe(
            lambda gradient, filters: (
                lambda n, ci, y, x: Sum(
                    lambda co, ky, kx: (
                        gradient[n, co, (y + padding - ky) / stride, (x + padding - kx) / stride]
                        * filters[co, ci, ky, kx]
                    )
                )
            )
        ),
        Extents({"ky": kernel, "kx": kernel}, whole=_SPACE),
    )


@lru_cache
def conv2d_weight_gradient(stride: int, padding: int, kernel: int) -> Signature:
    """Gradient of a convolution's filters, from gradient [n, co, y, x] and data [n, ci, y, x]."""
    return _signature(
        f"conv2d {kernel}x{kernel}/{stride}, weight gradient",
        describe(
            lambda gradient, data: (
                lambda co, ci, ky, kx: Sum(
                    lambda n, y, x: (
                        gradient[n, co, y, x] * data[n, ci, y * stride + ky - padding, x * stride + kx - padding]
                    )
                )
            )
        ),
        Extents({"ky": kernel, "kx": kernel}, whole=_SPACE | {"ky", "kx"}),
    )


# Statistics of each worker's own share, as data parallel training has them; a description over the whole batch would
# make them sums before their square root, which no kernel gives out.
BATCH_NORM = _table("batch norm", ("n", "S0 R R", "S0"), ("c", "S1 S0 S0", "S1"))
BATCH_NORM_GRADIENT = _table("batch norm, gradient", ("n", "S0 S0 R", "S0 P P"), ("c", "S1 S1 S0", "S1 S0 S0"))

MAX_POOL = _signature(
    "max pool",
    describe(lambda a: lambda n, c, y, x: Max(lambda ky, kx: a[n, c, 2 * y + ky, 2 * x + kx])),
    Extents(whole=_SPACE),
)
MAX_POOL_GRADIENT = _signature(
    "max pool, gradient",
    describe(lambda g, a: lambda n, c, y, x: call("routed", Opaque("window")(g[n, c, :, :], a[n, c, :, :])[y, x])),
)
# A kernel divides by the space that it is given.
MEAN_POOL = _signature(
    "mean pool", describe(lambda a: lambda n, c: Sum(lambda y, x: a[n, c, y, x])), Extents(whole=_SPACE)
)
MEAN_POOL_GRADIENT = _signature(
    "mean pool, gradient", describe(lambda g: lambda n, c, y, x: g[n, c]), Extents(whole=_SPACE)
)
CROSS_ENTROPY = _signature(
    "cross entropy",
    describe(
        lambda logits, labels: lambda: Sum(lambda n: Opaque("negative log likelihood")(logits[n, :], labels[n])[()])
    ),
)
CROSS_ENTROPY_GRADIENT = _signature(
    "cross entropy, gradient",
    describe(lambda logits, labels: lambda n, v: Opaque("softmax")(logits[n, :], labels[n])[v]),
)
# The same over rows of a sequence: logits [b, s, v], labels [b, s].
ROW_LOSS = _signature(
    "cross entropy of rows",
    describe(
        lambda logits, labels: (
            lambda: Sum(lambda b, s: Opaque("negative log likelihood")(logits[b, s, :], labels[b, s])[()])
        )
    ),
)
ROW_LOSS_GRADIENT = _signature(
    "cross entropy of rows, gradient",
    describe(lambda logits, labels: lambda b, s, v: Opaque("softmax")(logits[b, s, :], labels[b, s])[v]),
)
# weight [v, d], ids [b, s]. A lookup by number is not an affine index: rows of the table cannot be split without
# telling the kernel which ones it has.
EMBEDDING = _table("embedding", ("b", "R S0", "S0"), ("s", "R S1", "S1"), ("d", "S1 R", "S2"))
EMBEDDING_GRADIENT = _table("embedding, gradient", ("b", "S0 S0", "P"), ("s", "S1 S1", "P"), ("d", "S2 R", "S1"))

# z [b, gate, h], the cell c [b, h] -> the new hidden state and cell.
LSTM_GATES = _signature(
    "lstm gates",
    describe(
        lambda z, c: (
            lambda b, h: call("state", z[b, 0, h], z[b, 1, h], z[b, 2, h], z[b, 3, h], c[b, h]),
            lambda b, h: call("cell", z[b, 0, h], z[b, 1, h], z[b, 2, h], c[b, h]),
        )
    ),
)
# Gradients of both, z and c -> gradients of z and c.
LSTM_GATES_GRADIENT = _signature(
    "lstm gates, gradient",
    describe(
        lambda gh, gc, z, c: (
            lambda b, gate, h: call("gradient", gh[b, h], gc[b, h], z[b, 0, h], z[b, 1, h], z[b, 2, h], c[b, h]),
            lambda b, h: call("gradient", gh[b, h], gc[b, h], z[b, 0, h], z[b, 1, h], c[b, h]),
        )
    ),
)

NORM = _signature("norm", describe(lambda x, w: lambda b, s, h: Opaque("norm")(x[b, s, :], w[:])[h]))
# The gradient of the weights is a sum over rows, which a description of one result for each input cannot join with the
# rows of the other.
NORM_GRADIENT = _table("norm, gradient", ("b", "S0 S0 R", "S0 P"), ("s", "S1 S1 R", "S1 P"))

# q [b, h, g, s, d] with g query heads for each of the h heads of k and v [b, h, s, d]. Masks count rows of the whole
# sequence, so that it is not split.
ATTENTION = _signature(
    "attention",
    describe(
        lambda q, k, v: lambda b, h, g, s, d: Opaque("attention")(q[b, h, g, s, :], k[b, h, :, :], v[b, h, :, :])[d]
    ),
    Extents(whole=frozenset({"g", "s"})),
)


def _attention_gradient() -> Description:
    def read(g: object, q: object, k: object, v: object, b: Index, h: Index) -> Opaque:
        return Opaque("attention gradient")(
            g[b, h, :, :, :],  # type: ignore[index]
            q[b, h, :, :, :],  # type: ignore[index]
            k[b, h, :, :],  # type: ignore[index]
            v[b, h, :, :],  # type: ignore[index]
        )

    return describe(
        lambda g, q, k, v: (
            lambda b, h, i, s, d: read(g, q, k, v, b, h)[i, s, d],
            lambda b, h, s, d: read(g, q, k, v, b, h)[s, d],
            lambda b, h, s, d: read(g, q, k, v, b, h)[s, d],
        )
    )


ATTENTION_GRADIENT = _signature("attention, gradient", _attention_gradient())
