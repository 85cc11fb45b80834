"""Operators that read rows of a table, and which rows: the calls that a device can gather from host memory.

Each is brought to one form, rows of a table by a list of rows, and the shape that the result has. What has no such form
(an index behind a slice, a table whose rows are not in one piece) is left to PyTorch on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loadmaster.executor.graph.features.gather import INDEX_DTYPES, rows_are_contiguous

_aten = torch.ops.aten


@dataclass(frozen=True)
class RowRead:
    """Rows of a table [rows, ...], each row contiguous, by an index of int32 or int64, of any shape."""

    table: Tensor
    index: Tensor
    shape: tuple[int, ...]


OPERATORS = frozenset({_aten.index.Tensor, _aten.index_select.default, _aten.embedding.default, _aten.gather.default})


def row_read(func: Any, args: Sequence[Any]) -> RowRead | None:
    """The rows that one of :data:`OPERATORS` reads, or None where it does not read rows. ``args`` are its positional
    arguments; the table is an ordinary host tensor."""
    if func is _aten.index.Tensor:
        return _by_indices(args[0], args[1])
    if func is _aten.gather.default:
        return _by_elements(args[0], args[1], args[2])
    if func is _aten.embedding.default:
        return _of_rows(args[0], args[1]) if args[0].dim() == 2 else None
    table, dim, index = args[:3]
    return _of_rows(table, index.reshape(-1)) if table.dim() and dim in (0, -table.dim()) else None


def _of_rows(table: Tensor, index: Tensor) -> RowRead | None:
    if index.dtype not in INDEX_DTYPES or not rows_are_contiguous(table):
        return None
    return RowRead(table, index, (*index.shape, *table.shape[1:]))


def _by_indices(table: Tensor, indices: Sequence[Tensor | None]) -> RowRead | None:
    """Rows of ``table[a]``, ``table[mask]`` and ``table[a, b, ...]``, an index for each of the first dimensions."""
    given: list[Tensor] = []
    for index in indices:
        if index is not None and index.dtype == torch.bool:
            at = len(given)
            if not index.dim() or index.shape != table.shape[at : at + index.dim()]:
                return None
            given += index.nonzero().unbind(1)
        elif index is not None and index.dtype in INDEX_DTYPES:
            given.append(index)
        else:
            return None
    if len(given) == 1:
        return _of_rows(table, given[0])
    if not table.is_contiguous():
        return None
    count = len(given)
    flat = table.view(table.shape[:count].numel(), *table.shape[count:])
    device = next((i.device for i in given if i.is_cuda), given[0].device)
    row, known = torch.zeros((), dtype=torch.int64, device=device), torch.ones((), dtype=torch.bool, device=device)
    for index, size in zip(given, table.shape, strict=False):
        here = index.to(device)
        known = known & (here >= -size) & (here < size)
        row = row * size + torch.where(here < 0, here + size, here)
    row = torch.where(known, row, flat.shape[0])  # out of range in one dimension is out of range
    return RowRead(flat, row, (*row.shape, *flat.shape[1:]))


def _by_elements(table: Tensor, dim: int, index: Tensor) -> RowRead | None:
    """Rows of ``torch.gather``: every element is a row of its own."""
    if index.dtype not in INDEX_DTYPES or not table.is_contiguous() or not table.dim() or index.dim() != table.dim():
        return None
    dim %= table.dim()
    if any(i > t for d, (i, t) in enumerate(zip(index.shape, table.shape, strict=True)) if d != dim):
        return None
    element = index.long() * table.stride(dim)
    for d in range(table.dim()):
        if d != dim:
            shape = [-1 if k == d else 1 for k in range(table.dim())]
            place = torch.arange(index.shape[d], device=index.device).view(shape)
            element = element + place * table.stride(d)
    known = (index >= 0) & (index < table.shape[dim])
    return RowRead(table.view(-1), torch.where(known, element, table.numel()), tuple(index.shape))
