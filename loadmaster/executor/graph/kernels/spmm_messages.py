"""Messages as kernels read them: one or two operands, each of nodes or edges, and what joins them.

Features are two-dimensional to a kernel: ``outer`` by ``inner``. An operand has all of them, or is repeated along one
or both. Operators of PyTorch take all of it as one string: ``"u.full mul e.outer; sum; 4 x 16"``, since the time that
PyTorch takes to call an operator with a gradient grows with the square of the number of its arguments.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

# Relative to the rows of the matrix: u is the neighbour that a row reads from, v the row itself, e the edge between.
Target = Literal["u", "e", "v"]
Layout = Literal["full", "outer", "inner", "one"]
Join = Literal["copy", "add", "sub", "mul", "div", "expsub"]
# To rows; or not at all: to a value for each edge, or to one that is summed over the inner dimension.
Reduce = Literal["sum", "mean", "max", "min", "logsumexp", "each", "inner"]

SWAPPED: dict[Target, Target] = {"u": "v", "v": "u", "e": "e"}


class Side(NamedTuple):
    """Place of an operand's rows, and the dimensions along which it is repeated."""

    target: Target
    layout: Layout

    @property
    def word(self) -> str:
        return f"{self.target}.{self.layout}"


class Message(NamedTuple):
    """Message of one operand (``copy``) or of two that ``join`` joins. ``expsub`` is exp(left - right)."""

    join: Join
    left: Side
    right: Side | None

    @property
    def word(self) -> str:
        if self.right is None:
            return f"copy {self.left.word}"
        return f"{self.left.word} {self.join} {self.right.word}"


class Work(NamedTuple):
    """Work of an operator: messages, what becomes of them, and the two dimensions of features."""

    message: Message
    reduce: Reduce
    outer: int
    inner: int


def encode(work: Work) -> str:
    """Write work as the string that operators take."""
    # Sizes that a compiler keeps open are fixed here: kernels are made for each.
    return f"{work.message.word}; {work.reduce}; {int(work.outer)} x {int(work.inner)}"


@cache
def decode(text: str) -> Work:
    """Read the string that :func:`encode` wrote."""
    message, reduce, dimensions = text.split("; ")
    outer, _, inner = dimensions.partition(" x ")
    parts = message.split()
    if parts[0] == "copy":
        found = Message("copy", _side(parts[1]), None)
    else:
        found = Message(cast(Join, parts[1]), _side(parts[0]), _side(parts[2]))
    return Work(found, cast(Reduce, reduce), int(outer), int(inner))


def _side(word: str) -> Side:
    target, layout = word.split(".")
    return Side(cast(Target, target), cast(Layout, layout))


def width(layout: Layout, outer: int, inner: int) -> int:
    """Numbers in an operand's row."""
    return {"full": outer * inner, "outer": outer, "inner": inner, "one": 1}[layout]


def spread(value: Tensor, layout: Layout, outer: int, inner: int) -> Tensor:
    """Rows of an operand with the repetition written out: [rows, outer * inner]; a view where there is none."""
    if layout == "full":
        return value
    shape = {"outer": (outer, 1), "inner": (1, inner), "one": (1, 1)}[layout]
    return value.view(-1, *shape).expand(-1, outer, inner).reshape(-1, outer * inner)


def narrow(value: Tensor, layout: Layout, outer: int, inner: int) -> Tensor:
    """The sum of rows [rows, outer * inner] over what an operand of this layout is repeated along."""
    if layout == "full":
        return value
    if layout == "one":
        return value.sum(1, keepdim=True)
    return value.view(-1, outer, inner).sum(2 if layout == "outer" else 1)


def joined(join: Join, left: Tensor, right: Tensor | None) -> Tensor:
    """The message of operands that are gathered already."""
    if right is None:
        return left
    if join == "expsub":
        return (left - right).exp()
    if join == "add":
        return left + right
    if join == "sub":
        return left - right
    return left * right if join == "mul" else left / right


def result_dtype(left: Tensor, right: Tensor | None) -> torch.dtype:
    """Dtype of a message: the wider one of its operands."""
    return left.dtype if right is None else torch.promote_types(left.dtype, right.dtype)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype in which messages are added up: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
