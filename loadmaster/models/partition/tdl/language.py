"""The tensor description language of Tofu ([Wang20] section 3.4.1): an operator as lambdas over indices.

    conv1d = describe(
        lambda data, filters: lambda b, co, x: Sum(
            lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx]
        )
    )

A tensor is indexed by affine expressions of indices with constant numbers; ``:`` takes a dimension whole. Elements are
combined by arithmetic, by named functions of single elements (``call("relu", ...)``), by ``Sum``, ``Max``, ``Min`` and
``Prod`` over indices, and by opaque functions, of which nothing is known but what they read. An operator with several
results returns a tuple of lambdas.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import InputError

_EVERY_ONE = slice(None)


class Expression:
    """An expression for an element of a result."""

    def __add__(self, other: Expression | float) -> Expression:
        return Added(self, expression(other))

    def __radd__(self, other: float) -> Expression:
        return Added(expression(other), self)

    def __sub__(self, other: Expression | float) -> Expression:
        return Added(self, Multiplied(Number(-1.0), expression(other)))

    def __rsub__(self, other: float) -> Expression:
        return expression(other) - self

    def __mul__(self, other: Expression | float) -> Expression:
        return Multiplied(self, expression(other))

    def __rmul__(self, other: float) -> Expression:
        return Multiplied(expression(other), self)

    def __truediv__(self, other: Expression | float) -> Expression:
        return Multiplied(self, call("reciprocal", expression(other)))


@dataclass(frozen=True)
class Number(Expression):
    """A constant number in an expression."""

    value: float


@dataclass(frozen=True)
class Added(Expression):
    """Sum of two expressions, a + b."""

    a: Expression
    b: Expression


@dataclass(frozen=True)
class Multiplied(Expression):
    """Product of two expressions, a b."""

    a: Expression
    b: Expression


@dataclass(frozen=True)
class Called(Expression):
    """A function of single elements, which is not linear."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class Reduced(Expression):
    """Reduction of an expression over some indices."""

    by: str
    over: tuple[str, ...]
    body: Expression


@dataclass(frozen=True, eq=False)
class Index:
    """Affine expression of indices, a sum of coefficient x index and a constant: which element of a dimension."""

    terms: Mapping[str, float]
    constant: float = 0.0

    def __add__(self, other: Index | float) -> Index:
        if isinstance(other, (int, float)):
            return Index(self.terms, self.constant + other)
        names = dict.fromkeys((*self.terms, *other.terms))
        terms = {name: self.terms.get(name, 0.0) + other.terms.get(name, 0.0) for name in names}
        return Index(terms, self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | float) -> Index:
        return self + (-other)

    def __rsub__(self, other: float) -> Index:
        return -self + other

    def __mul__(self, other: float) -> Index:
        if not isinstance(other, (int, float)):
            raise InputError("index", other, "is multiplied by an index", "Indices are affine: multiply by numbers.")
        return Index({name: a * other for name, a in self.terms.items()}, self.constant * other)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Index:
        return self * (1 / other)


@dataclass(frozen=True)
class Element(Expression):
    """An element of a tensor, or a slice of it where a dimension is taken whole (None)."""

    tensor: int
    at: tuple[Index | None, ...]


@dataclass(frozen=True)
class OpaqueElement(Expression):
    """An element of what an opaque function makes of slices; ``at`` are the indices of that element."""

    name: str
    reads: tuple[Element, ...]
    at: tuple[Index, ...]


@dataclass(frozen=True)
class _Tensor:
    number: int
    name: str

    def __getitem__(self, given: Any) -> Element:
        at = given if isinstance(given, tuple) else (given,)
        return Element(self.number, tuple(self._index(one) for one in at))

    def _index(self, one: Any) -> Index | None:
        if isinstance(one, slice) and one == _EVERY_ONE:
            return None
        if isinstance(one, (int, float)):
            return Index({}, one)
        if not isinstance(one, Index):
            remedy = "Index by affine expressions of indices, or by ':'."
            raise InputError(f"{self.name}[...]", type(one).__name__, "is no index", remedy)
        return one


@dataclass(frozen=True)
class Opaque:
    """A function of which nothing is known but what it reads: ``Opaque("cholesky")(a[b, :, :])[i, j]``."""

    name: str
    reads: tuple[Element, ...] = field(default=())

    def __call__(self, *reads: Element) -> Opaque:
        return Opaque(self.name, reads)

    def __getitem__(self, at: Any) -> OpaqueElement:
        return OpaqueElement(self.name, self.reads, at if isinstance(at, tuple) else (at,))


@dataclass(frozen=True)
class Result:
    """One result: the names of its indices, one for each dimension, and what its elements are."""

    indices: tuple[str, ...]
    element: Expression


@dataclass(frozen=True)
class Description:
    """Description of what an operator computes: the names of its inputs, and its results."""

    inputs: tuple[str, ...]
    results: tuple[Result, ...]


def describe(operator: Callable[..., Any]) -> Description:
    """The description that lambdas stand for; raises InputError for an index that is not affine, or not an index."""
    names = _names(operator)
    made = operator(*(_Tensor(n, name) for n, name in enumerate(names)))
    return Description(names, tuple(_result(one) for one in (made if isinstance(made, tuple) else (made,))))


def _result(lambda_: Callable[..., Any]) -> Result:
    names = _names(lambda_)
    return Result(names, expression(lambda_(*(Index({name: 1.0}) for name in names))))


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def expression(value: Expression | float) -> Expression:
    """A number as an expression."""
    return value if isinstance(value, Expression) else Number(float(value))


def call(name: str, *arguments: Expression | float) -> Expression:
    """A function of single elements, by name."""
    return Called(name, tuple(map(expression, arguments)))


def _reducer(by: str) -> Callable[[Callable[..., Any]], Expression]:
    def reduce(body: Callable[..., Any]) -> Expression:
        names = _names(body)
        return Reduced(by, names, expression(body(*(Index({name: 1.0}) for name in names))))

    reduce.__doc__ = f"The {by} over the indices of a lambda."
    return reduce


Sum, Max, Min, Prod = map(_reducer, ("sum", "max", "min", "product"))
