"""Values that are not kept, made on the rows that ask for them, with plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.models.graph.operators import OPERATORS
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.spaces import Space
from loadmaster.models.graph.value import GIVEN, Value

_SAME_ROWS: dict[str, Space] = {"source": "node", "target": "node", "as_node": "node"}


@dataclass(frozen=True)
class Rows:
    """Some rows of a space.

    Attributes:
        index: their numbers, a tensor or a range; of a range the values are read without a gather.
    """

    space: Space
    index: Tensor | slice

    def of(self, indices: Indices, coarse: Space) -> Rows:
        """The rows of a coarser space that these belong to."""
        owner = indices.map(self.space, coarse)
        return Rows(coarse, self.index if owner is None else owner[self.index])


class Evaluator:
    """Makes values of one program on rows of one graph.

    Args:
        held: values by number (:mod:`.runner`); more may be added while it is used.
    """

    def __init__(self, program: Program, indices: Indices, held: Mapping[int, Tensor]) -> None:
        self.program, self.indices, self.held = program, indices, held

    def made(self, n: int, rows: Rows) -> Tensor:
        """A value on these rows, which are of its space or of a finer one: [rows, *shape].

        Numbers of 16 bits are widened to float32, except where a value is no more than a view of what is held.
        """
        value = self.program.values[n]
        if n in self.held:
            return self.held[n][rows.of(self.indices, self.program.types[n].space).index]
        assert value.op not in GIVEN, f"{value.name} is not held"
        if value.op in _SAME_ROWS:
            at = rows.of(self.indices, self.program.types[n].space)
            return self.made(value.inputs[0], Rows(_SAME_ROWS[value.op], at.index))
        given = [self.made(i, rows) for i in value.inputs]
        if OPERATORS[value.op].sort != "view":
            given = [x.float() if x.dtype.itemsize < 4 else x for x in given]
        return computed(value, given)


def computed(value: Value, given: list[Tensor]) -> Tensor:
    """Apply an operator to its inputs on the same rows: any operator but ``linear``, aggregates and outers."""
    if value.op in _OF_TWO:
        a, b = given
        short, long = sorted((a.dim(), b.dim()))
        if short != long:
            a, b = (x.reshape(*x.shape, *[1] * (long - x.dim())) for x in (a, b))
        return _OF_TWO[value.op](a, b)
    if value.op in _OF_ONE:
        return _OF_ONE[value.op](given[0])
    return _OTHERS[value.op](value, *given)


def _gelu_slope(x: Tensor) -> Tensor:
    density = torch.exp(x * x * -0.5) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density


def _dot(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != b.dim():
        a, b = (x if x.dim() == 3 else x.unsqueeze(1) for x in (a, b))
    return (a * b).sum(-1)


def _fold(weight: Tensor, w: Tensor) -> Tensor:
    if weight.dim() == 3 and w.dim() == 3:
        return torch.bmm(*_same_batch(weight, w))
    if weight.dim() == 4:
        return torch.einsum("nhkm,nhm->nhk", weight, w)
    return torch.einsum("nkm,nm->nk", weight, w)


def _same_batch(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    count = max(a.shape[0], b.shape[0])
    return a.expand(count, -1, -1), b.expand(count, -1, -1)


def _pad(value: Value, x: Tensor) -> Tensor:
    start = int(value.number or 0)
    return functional.pad(x, (start, (value.count or 0) - start - x.shape[-1]))


_OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "equal": lambda a, b: (a == b).to(a.dtype),
}
_OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "relu": torch.relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_slope": _gelu_slope,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "reciprocal": torch.reciprocal,
    "step": lambda x: (x > 0).to(x.dtype),
    "join_heads": lambda x: x.flatten(-2),
    "transpose": lambda x: x.transpose(-1, -2),
    "merge_heads": lambda x: x.transpose(-1, -2).flatten(1, 2),
    "spread": lambda x: x,
    "row_sum": lambda x: x.sum(-1),
    "head_sum": lambda x: x.sum(-2),
}
_OTHERS: dict[str, Callable[..., Tensor]] = {
    "leaky_relu": lambda value, x: functional.leaky_relu(x, value.number or 0.0),
    "scale": lambda value, x: x * value.number,
    "shift": lambda value, x: x + value.number,
    "split_heads": lambda value, x: x.unflatten(-1, (value.count, -1)),
    "concat": lambda value, a, b: torch.cat((a, b), -1),
    "part": lambda value, x: x.narrow(-1, int(value.number or 0), value.count),
    "pad": _pad,
    "repeat_heads": lambda value, x: x.unsqueeze(1).expand(-1, value.count, -1),
    "repeat_last": lambda value, x: x.unsqueeze(-1).expand(*x.shape, value.count),
    "dot": lambda value, a, b: _dot(a, b),
    "fold": lambda value, weight, w: _fold(weight, w),
}
