"""Kernels in plain PyTorch: on CPUs, in float64, and wherever no kernel is generated.

Values that are not kept are made on the rows that ask for them, a chunk of the kernel's rows at a time; so no more is
held than in a generated kernel, but for a chunk. Sums are taken in float32 at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.runner import stored_dtype
from loadmaster.models.graph.operators import GIVEN, OPERATORS, Value
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel, is_free
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space

CHUNK_NUMBERS = 1 << 24  # of the widest value that a kernel makes at once
_SAME_ROWS: dict[str, Space] = {"source": "node", "target": "node", "as_node": "node"}


@dataclass(frozen=True)
class Rows:
    """Rows of a space by number: a tensor, or a range, of which values are read without a gather."""

    space: Space
    index: Tensor | slice

    def of(self, indices: Indices, coarse: Space) -> Rows:
        """The rows of a coarser space that these belong to."""
        owner = indices.map(self.space, coarse)
        return Rows(coarse, self.index if owner is None else owner[self.index])


class Evaluator:
    """Makes values of one program on rows of one graph, from ``held`` (:mod:`.runner`), which may grow meanwhile."""

    def __init__(self, program: Program, indices: Indices, held: Mapping[int, Tensor]) -> None:
        self.program, self.indices, self.held = program, indices, held

    def made(self, n: int, rows: Rows) -> Tensor:
        """A value on these rows, which are of its space or of a finer one: [rows, *shape]. Numbers of 16 bits are
        widened to float32, except where a value is no more than a view of what is held."""
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
        count = max(weight.shape[0], w.shape[0])
        return torch.bmm(weight.expand(count, -1, -1), w.expand(count, -1, -1))
    if weight.dim() == 4:
        return torch.einsum("nhkm,nhm->nhk", weight, w)
    return torch.einsum("nkm,nm->nk", weight, w)


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


class ReferenceRunner:
    """Runs one kernel on one graph (:mod:`.runner`), on any device, in any floating dtype."""

    def __init__(self, program: Program, kernel: Kernel, indices: Indices, dtype: torch.dtype) -> None:
        self.program, self.kernel, self.indices, self.dtype = program, kernel, indices, dtype
        widest = max(typed.numbers for typed in program.types if typed.space not in WEIGHT_SPACES)
        self._chunk_rows = max(1, CHUNK_NUMBERS // widest)

    def __call__(self, held: Mapping[int, Tensor]) -> list[Tensor]:
        """Run the kernel; return what it stores, in order."""
        made = dict(held)
        evaluator = Evaluator(self.program, self.indices, made)
        for n in sorted(self.kernel.stores):
            stored = self._made(evaluator, n).to(stored_dtype(self.program, n, self.dtype))
            made[n] = stored.contiguous()
        return [made[n] for n in self.kernel.stores]

    def _made(self, evaluator: Evaluator, n: int) -> Tensor:
        value = self.program.values[n]
        if value.op == "linear":
            return self._linear(evaluator, n, value)
        if value.op == "aggregate":
            return self._aggregate(evaluator, n, value)
        if value.op == "outer":
            return self._outer(evaluator, n, value)
        space = self.program.types[n].space
        parts = [evaluator.made(n, rows) for rows in self._chunks(space, 0, self.indices.rows(space))]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _chunks(self, space: Space, start: int, end: int) -> Iterator[Rows]:
        """Yield chunks of the rows from start to end; at least one, if need be without rows."""
        for lo in range(start, max(end, start + 1), self._chunk_rows):
            yield Rows(space, slice(lo, min(lo + self._chunk_rows, end)))

    def _segments(self, space: Space, types: Space) -> Iterator[tuple[int, Rows]]:
        """Yield chunks of rows of one type, with the type."""
        ptr = self.indices.segments(space, types)
        for which, (start, end) in enumerate(pairwise(ptr)):
            if start < end:
                yield from ((which, rows) for rows in self._chunks(space, start, end))

    def _linear(self, evaluator: Evaluator, n: int, value: Value) -> Tensor:
        x, weight = value.inputs
        typed, types = self.program.types[n], self.program.types[weight].space
        weights = evaluator.made(weight, Rows(types, slice(None)))
        if types == "one" and is_free(self.program, x):
            return _product(*_alike(evaluator.made(x, Rows(typed.space, slice(None))), weights[0]))
        found: Tensor | None = None
        for which, rows in self._segments(typed.space, types):
            part = _product(*_alike(evaluator.made(x, rows), weights[which]))
            if found is None:
                found = part.new_zeros(self.indices.rows(typed.space), *typed.shape)
            found[rows.index] = part
        return weights.new_zeros(0, *typed.shape) if found is None else found

    def _aggregate(self, evaluator: Evaluator, n: int, value: Value) -> Tensor:
        assert value.over is not None and value.reduce is not None
        (x,) = value.inputs
        typed = self.program.types[n]
        over: Space = value.over

        def chunks() -> Iterator[tuple[Tensor, Tensor]]:
            owner = self.indices.map(over, typed.space)
            for rows in self._chunks(over, 0, self.indices.rows(over)):
                part = _wide(evaluator.made(x, rows))
                assert isinstance(rows.index, slice)
                every = torch.arange(rows.index.start, rows.index.stop, device=part.device)
                yield part, every if owner is None else owner[rows.index]

        return _reduced(value.reduce, chunks, self.indices.rows(typed.space))

    def _outer(self, evaluator: Evaluator, n: int, value: Value) -> Tensor:
        assert value.over is not None
        x, y = value.inputs
        typed = self.program.types[n]
        shared = value.count is not None
        if self.indices.map(value.over, typed.space) is None:
            every = Rows(value.over, slice(None))
            return _outer_by_row(_wide(evaluator.made(x, every)), _wide(evaluator.made(y, every)), shared)
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        found = torch.zeros(self.indices.rows(typed.space), *typed.shape, dtype=wide, device=self.indices.device)
        for which, rows in self._segments(value.over, typed.space):
            found[which] += _outer_sum(_wide(evaluator.made(x, rows)), _wide(evaluator.made(y, rows)), shared)
        return found


def _reduced(reduce: str, chunks: Callable[[], Iterator[tuple[Tensor, Tensor]]], count: int) -> Tensor:
    """Rows put together by the row that each belongs to: [count, *shape]; zeros where there are none. ``chunks`` gives
    the rows again each time: (values [n, *shape], row of each [n])."""
    if reduce in ("sum", "mean"):
        return _summed(chunks, count, reduce == "mean")
    extreme, low = ("amin", math.inf) if reduce == "min" else ("amax", -math.inf)
    most: Tensor | None = None
    for part, owner in chunks():
        if most is None:
            most = part.new_full((count, *part.shape[1:]), low)
        index = owner.long().view(-1, *[1] * (part.dim() - 1)).expand(part.shape)
        most.scatter_reduce_(0, index, part, extreme)
    assert most is not None
    none = most == low
    most = most.masked_fill(none, 0.0)
    if reduce != "logsumexp":
        return most
    total = _summed(lambda: ((torch.exp(part - most[owner]), owner) for part, owner in chunks()), count, False)
    return (total.log() + most).masked_fill(none, 0.0)


def _summed(chunks: Callable[[], Iterator[tuple[Tensor, Tensor]]], count: int, mean: bool) -> Tensor:
    found: Tensor | None = None
    rows: Tensor | None = None
    for part, owner in chunks():
        if found is None:
            found = part.new_zeros(count, *part.shape[1:])
            rows = part.new_zeros(count)
        found.index_add_(0, owner, part)
        if mean:
            assert rows is not None
            rows.index_add_(0, owner, part.new_ones(len(owner)))
    assert found is not None and rows is not None
    return found / rows.clamp(min=1).view(-1, *[1] * (found.dim() - 1)) if mean else found


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype.itemsize < 4 else x


def _alike(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Bring rows and a weight to the wider dtype of the two."""
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return x.to(dtype), weight.to(dtype)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Rows through one weight: [n, (H,) K] x [(H,) K, M]."""
    if weight.dim() == 2:
        return x @ weight
    return torch.einsum("nk,hkm->nhm" if x.dim() == 2 else "nhk,hkm->nhm", x, weight)


def _outer_sum(x: Tensor, y: Tensor, shared: bool) -> Tensor:
    """The sum over rows of the products of each row's numbers; ``shared``: over heads too."""
    if x.dim() == 2:
        return x.T @ y if y.dim() == 2 else torch.einsum("nk,nhm->hkm", x, y)
    return torch.einsum("nhk,nhm->km" if shared else "nhk,nhm->hkm", x, y)


def _outer_by_row(x: Tensor, y: Tensor, shared: bool) -> Tensor:
    """The products of each row's numbers, row by row; ``shared``: summed over heads."""
    if x.dim() == 2:
        return torch.einsum("nk,nm->nkm" if y.dim() == 2 else "nk,nhm->nhkm", x, y)
    return torch.einsum("nhk,nhm->nkm" if shared else "nhk,nhm->nhkm", x, y)
