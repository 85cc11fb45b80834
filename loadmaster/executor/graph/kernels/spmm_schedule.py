"""Schedules of a sparse matrix's rows for kernels: rows of like length share a program, long rows are split.

Made once for a graph and kept. The packed ``order`` holds, one after the other, for the counts (tiny, small, large,
split, chunks) of :class:`Schedule`:

    row of every tiny, then small, then large row; row of every split row; first chunk of every split row, and the end;
    row, first position and last position + 1 of every chunk

A schedule with one sort of row and no split row needs no order: its rows are taken as they come.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TINY_DEGREE = 4  # up to here many rows share a program
SMALL_DEGREE = 48  # up to here a warp takes a few rows
CHUNK_EDGES = 512  # longer rows are split into chunks of this many
# A sort of row that is rarer than one in this many joins the next longer sort: it is not worth a launch.
RARE = 16


class Schedule(NamedTuple):
    """Sorts of the rows of one matrix, how many of each, and the order in which kernels take them. ``order`` is packed
    as the module says, of the ids' dtype; empty where rows are taken as they come."""

    order: Tensor
    tiny: int
    small: int
    large: int
    split: int
    chunks: int

    @property
    def counts(self) -> list[int]:
        """Numbers of rows of each sort and of chunks, as operators take them."""
        return [self.tiny, self.small, self.large, self.split, self.chunks]


# Schedules are made once, outside compiled code. They serve training too, whoever asks first.
@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.inference_mode(False)
def schedule_rows(ptr: Tensor) -> Schedule:
    """The schedule of rows that begin and end where ``ptr`` [rows + 1] says. Waits for the device once or twice."""
    rows = ptr.numel() - 1
    nothing = ptr.new_empty(0)
    if rows <= 0:
        return Schedule(nothing, 0, 0, 0, 0, 0)
    degree = ptr.diff()
    sort = (degree > TINY_DEGREE).to(torch.int8) + (degree > SMALL_DEGREE) + (degree > CHUNK_EDGES)
    counts = torch.bincount(sort, minlength=4)
    tiny, small, large, split = counts.tolist()
    if 0 < tiny < rows / RARE:
        sort = sort.clamp(min=1)
        tiny, small = 0, tiny + small
    if tiny == 0 and 0 < small < rows / RARE:
        sort = sort.clamp(min=2)
        small, large = 0, small + large
    if rows in (tiny, small, large):
        return Schedule(nothing, tiny, small, large, 0, 0)
    by_sort = sort.argsort(stable=True)
    parts = [by_sort]
    chunks = 0
    if split:
        row = by_sort[rows - split :]
        per_row = (degree[row] + CHUNK_EDGES - 1) // CHUNK_EDGES
        first = torch.zeros(split + 1, dtype=torch.int64, device=ptr.device)
        first[1:] = per_row.cumsum(0)
        chunks = int(first[-1])
        chunk_row = row.repeat_interleave(per_row, output_size=chunks)
        within = torch.arange(chunks, device=ptr.device) - first[:-1].repeat_interleave(per_row, output_size=chunks)
        begin = ptr[chunk_row] + within * CHUNK_EDGES
        end = torch.minimum(begin + CHUNK_EDGES, ptr[chunk_row + 1])
        parts += [first, chunk_row, begin, end]
    order = torch.cat([part.to(ptr.dtype) for part in parts])
    return Schedule(order, tiny, small, large, split, chunks)
