"""A call of an ATen operator as rules see it: the shapes of its tensors and its other arguments, without torch."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TdlCall:
    """One call of an ATen operator.

    Attributes:
        name: of the operator, without namespace and overload.
        inputs: for every tensor that it is given, in order, the name of the argument and the shape.
        results: shapes.
        arguments: by name; of tensors, whether there are any.
        pointwise: whether the operator is said to take its inputs element by element.
    """

    name: str
    inputs: tuple[tuple[str, Shape], ...]
    results: tuple[Shape, ...]
    arguments: Mapping[str, Any]
    pointwise: bool = False

    def shape(self, argument: str) -> Shape:
        """Shape of the first tensor of an argument."""
        return next(shape for name, shape in self.inputs if name == argument)

    @property
    def first(self) -> Shape:
        """The shape of the first tensor."""
        return self.inputs[0][1]

    def dims(self, name: str, rank: int) -> tuple[int, ...]:
        """The dimensions that an argument names, none negative; all where it names none."""
        given = self.arguments.get(name)
        if given is None or given == [] or given == ():
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(int(d) % max(rank, 1) for d in listed)


def free(count: int) -> str:
    """Letters of dimensions that can be split: a, b, c, ..."""
    return string.ascii_lowercase[:count]


def whole(letters: str, dims: tuple[int, ...]) -> str:
    """Mark letters of dimensions that are needed whole, by upper case."""
    return "".join(c.upper() if d in dims else c for d, c in enumerate(letters))


def broadcast(letters: str, shape: Shape, of: Shape) -> str:
    """Letters of a tensor of this shape next to one of shape ``of``, aligned at the end."""
    rows = zip(shape, letters[len(letters) - len(shape) :], of[len(of) - len(shape) :], strict=True)
    return "".join("1" if extent == 1 and full != 1 else c for extent, c, full in rows)
