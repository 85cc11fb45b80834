"""Tables of a graph that generated kernels read, made once for each graph: tiles of typed rows, chunks of long rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.models.graph.spaces import Space

_made: WeakKeyDictionary[Indices, dict[Hashable, Any]] = WeakKeyDictionary()

Table = Mapping[str, Tensor]


@dataclass(frozen=True)
class Groups:
    """The rows that belong to each row, in the order in which a traversal takes them. ``rows``: the row of each place
    (None: its own number); ``ptr``: where that row's rows begin in ``order`` (None: 0, 1, 2, ...)."""

    rows: Tensor | None
    ptr: Tensor
    order: Tensor | None


def groups(indices: Indices, over: Space, to: Space, by_length: bool) -> Groups:
    """The rows of ``over`` that belong to each row of ``to``. ``by_length``: rows with many come first, so that a
    program takes rows of like length together."""

    def sorted_groups() -> Groups:
        ptr, order = indices.groups(over, to)
        lengths, rows = torch.sort(ptr[1:] - ptr[:-1], descending=True, stable=True)
        ends = torch.cumsum(lengths, 0, dtype=ptr.dtype)
        begins = ends - lengths
        count = indices.rows(over)
        place = torch.arange(count, dtype=ptr.dtype, device=ptr.device)
        place += torch.repeat_interleave(ptr[rows] - begins, lengths, output_size=count)
        order = place if order is None else order[place]
        return Groups(rows.to(ptr.dtype), torch.cat((ptr.new_zeros(1), ends)), order)

    if not by_length:
        return Groups(None, *indices.groups(over, to))
    found: Groups = _once(indices, ("groups", over, to), sorted_groups)
    return found


def grouped_map(indices: Indices, over: Space, to: Space, of: Space, by_length: bool) -> Tensor | None:
    """The row of ``of`` of each row of ``over``, in the order in which a traversal takes these. So a traversal reads
    neighbours' numbers next to each other, where the map by number would be read all over."""
    order = groups(indices, over, to, by_length).order
    plain = indices.map(over, of)
    if order is None or plain is None:
        return plain if order is None else order
    found: Tensor = _once(indices, ("grouped", over, to, of, by_length), lambda: plain[order])
    return found


def tiles(indices: Indices, space: Space, types: Space, rows: int) -> tuple[Table, int]:
    """Tiles of so many rows of one type: ``tile_first``, ``tile_last``, ``tile_type``; and how many tiles."""

    def made() -> tuple[Table, int]:
        ptr = np.array(indices.segments(space, types))
        which, first, last = _cut_each(ptr[:-1], ptr[1:], rows)
        return _table(indices, tile_first=first, tile_last=last, tile_type=which), len(which)

    found: tuple[Table, int] = _once(indices, ("tiles", space, types, rows), made)
    return found


def chunks(
    indices: Indices, over: Space, to: Space, rows: int, bound: int, by_length: bool = False
) -> tuple[Table, int, int]:
    """Chunks of the rows of ``to`` that have more than ``bound`` rows of ``over`` (of all, where bound is 0).

    Returns tables (``chunk_row``, ``chunk_first``, ``chunk_last`` of the chunks; ``cut_row``, ``cut_length``,
    ``cut_begin``, ``cut_end`` of the rows that are cut, how many rows belong to each, and their chunks), the number of
    chunks, and the number of rows that are cut.
    """

    def made() -> tuple[Table, int, int]:
        row, first, last = _long_rows(indices, over, to, bound, by_length)
        at, chunk_first, chunk_last = _cut_each(first, last, rows)
        ends = np.cumsum(np.bincount(at, minlength=len(row)))
        begins = ends - np.bincount(at, minlength=len(row))
        tables = _table(
            indices,
            chunk_row=row[at],
            chunk_first=chunk_first,
            chunk_last=chunk_last,
            cut_row=row,
            cut_length=last - first,
            cut_begin=begins,
            cut_end=ends,
        )
        return tables, len(at), len(row)

    found: tuple[Table, int, int] = _once(indices, ("chunks", over, to, rows, bound, by_length), made)
    return found


def _long_rows(indices: Indices, over: Space, to: Space, bound: int, by_length: bool) -> Any:
    """Rows of ``to`` with more than ``bound`` rows of ``over``, all where that is 0, and where these begin and end."""
    found = groups(indices, over, to, by_length)
    if not bound and found.order is None:
        ptr = np.array(indices.segments(over, to))
        return np.arange(len(ptr) - 1), ptr[:-1], ptr[1:]
    # Found on the device, which is waited for: of millions of rows, few are long.
    place = torch.nonzero(found.ptr.diff() > (bound or -1)).flatten()
    row = place if found.rows is None else found.rows[place].long()
    return torch.stack((row, found.ptr[place].long(), found.ptr[place + 1].long())).cpu().numpy()


def _once(indices: Indices, key: Hashable, make: Callable[[], Any]) -> Any:
    kept = _made.setdefault(indices, {})
    if key not in kept:
        kept[key] = make()
    return kept[key]


def _cut_each(first: Any, last: Any, size: int) -> tuple[Any, Any, Any]:
    """Runs of at most ``size`` of each range: (which range, first, last)."""
    counts = -(-(last - first) // size)
    which = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = first[which] + within * size
    return which, begin, np.minimum(begin + size, last[which])


def _table(indices: Indices, **columns: Any) -> Table:
    """Columns on the device, by one copy; each begins on a multiple of 16 bytes."""
    fits = all(len(c) == 0 or c.max() < 1 << 31 for c in columns.values())
    begins = np.cumsum([0, *(-(-len(c) // 4) * 4 for c in columns.values())]).tolist()
    whole = np.zeros(begins[-1], np.int32 if fits else np.int64)
    for begin, column in zip(begins, columns.values(), strict=False):
        whole[begin : begin + len(column)] = column
    there = torch.from_numpy(whole).to(indices.device, non_blocking=True)
    starts = zip(begins, columns.items(), strict=False)
    return {name: there[begin : begin + len(column)] for begin, (name, column) in starts}
