# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The gather kernel: rows of a host table, and of rows kept on the device, read by one launch.

A row is read from the beginning of the 128-byte line that it starts in: the columns of a program are shifted left by
the row's offset in its line, and lanes outside the row do nothing. So every line of a row is asked for once, as with
the circular shift of PyTorch-Direct ([Wu24], section 4.4.5), which asks once more where the shifted lanes wrap. Rows of
at most a line, and rows that start with a line, are not shifted.

Rows are copied as words of at most 8 bytes, whatever their dtype. A program takes several rows, and few programs go
through all of them: the link is full long before the device is, and the training at the same time needs the rest.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

LINE_BYTES = 128  # that a GPU asks the host for at once
_WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}


TILE_BYTES = 8192  # that a program asks for before it waits
COLUMNS_BYTES = 2048  # of a row, at most, that one program takes at once
PROGRAMS_PER_PROCESSOR = 2  # at a time
WARPS = 4


@triton.jit
def _gather(
    table,
    rows,
    slots,
    counts,
    index,
    result,
    row_count,
    index_count,
    lead,
    WORDS: tl.constexpr,
    STRIDE: tl.constexpr,
    LINE: tl.constexpr,
    VECTOR: tl.constexpr,
    HOT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    COLUMN_TILES: tl.constexpr,
):
    tiles = tl.cdiv(index_count, ROWS) * COLUMN_TILES
    hits = tl.zeros([ROWS], tl.int64)
    reads = tl.zeros([ROWS], tl.int64)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row_tile = tile // COLUMN_TILES
        column_tile = tile - row_tile * COLUMN_TILES
        column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
        position = row_tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
        wanted = position < index_count
        node = tl.load(index + position, mask=wanted, other=0).to(tl.int64)
        node = tl.where(node < 0, node + row_count, node)
        known = wanted & (node >= 0) & (node < row_count)
        start = tl.where(known, node * STRIDE + lead, 0)
        on_host = known
        if HOT:
            slot = tl.load(slots + node, mask=known, other=-1).to(tl.int64)
            on_device = slot >= 0
            on_host = known & (slot < 0)
            start = tl.where(on_device, slot * WORDS, start)
            if column_tile == 0:
                hits += on_device.to(tl.int64)
                reads += known.to(tl.int64)
        start = tl.multiple_of(start, VECTOR)
        line = start
        element = column[None, :]
        inside = element < WORDS
        if LINE > 1:  # only where it is: lanes under a mask that is shifted load one word at a time
            line = start // LINE * LINE
            element = column[None, :] - (start - line)[:, None]
            inside = (element >= 0) & (element < WORDS)
        # Neighbouring lanes take what one load gives whole: lanes that load in several pieces ask for a line as often.
        source = tl.max_contiguous(line[:, None] + column[None, :], [1, VECTOR])
        value = tl.load(table - lead + source, mask=inside & on_host[:, None], other=0)
        if HOT:
            kept = tl.load(rows + source, mask=inside & on_device[:, None], other=0)
            value = tl.where(on_device[:, None], kept, value)
        tl.store(result + position[:, None] * WORDS + element, value, mask=inside & wanted[:, None])
    if HOT:
        tl.atomic_add(counts, tl.sum(hits, 0))
        tl.atomic_add(counts + 1, tl.sum(reads, 0))


def gather(table: Tensor, index: Tensor, result: Tensor, hot: tuple[Tensor, Tensor, Tensor] | None = None) -> None:
    """Copy rows of a table to a result; rows that the device keeps are read there.

    Args:
        table: [rows, ...] in host memory that the device reads, each row contiguous.
        index: int32 or int64 [n], contiguous, on the device. Negative rows count from the end; missing ones give zeros.
        result: [n, ...] on the device, contiguous.
        hot: on the device: the rows that it keeps, [hot, ...], contiguous; int32 [rows of the table], where among them
            a row is, or -1; int64 [2], to which rows found there, and rows read, are added.
    """
    width_bytes, stride_bytes = table.shape[1:].numel() * table.element_size(), table.stride(0) * table.element_size()
    if not index.numel() or not width_bytes:
        return
    word_bytes = math.gcd(width_bytes, stride_bytes, table.data_ptr(), 8)
    words, stride = width_bytes // word_bytes, stride_bytes // word_bytes
    lead_bytes = table.data_ptr() % LINE_BYTES
    steps = [stride_bytes, lead_bytes, 0 if hot is None else width_bytes]
    shifted = width_bytes > LINE_BYTES and any(step % LINE_BYTES for step in steps)
    line = LINE_BYTES // word_bytes if shifted else 1
    # A row takes its length and what is before it in its first line.
    columns = min(triton.next_power_of_2(words + line - 1), COLUMNS_BYTES // word_bytes)
    row_tile = max(1, TILE_BYTES // (columns * word_bytes))
    column_tiles = triton.cdiv(words + line - 1, columns)
    tiles = triton.cdiv(index.numel(), row_tile) * column_tiles
    word = _WORDS[word_bytes]
    # Lanes take 16 bytes at once where every row begins at a multiple of that.
    vector = math.gcd(words, stride, lead_bytes // word_bytes, 16 // word_bytes)
    rows, slots, counts = (index, index, index) if hot is None else (triton.reinterpret(hot[0], word), *hot[1:])
    with torch.cuda.device_of(index):
        _gather[(min(tiles, _processors(index.device) * PROGRAMS_PER_PROCESSOR),)](
            triton.reinterpret(table, word),
            rows,
            slots,
            counts,
            index,
            triton.reinterpret(result, word),
            table.shape[0],
            index.numel(),
            lead_bytes // word_bytes if shifted else 0,
            WORDS=words,
            STRIDE=stride,
            LINE=line,
            VECTOR=vector,
            HOT=hot is not None,
            ROWS=row_tile,
            COLUMNS=columns,
            COLUMN_TILES=column_tiles,
            num_warps=WARPS,
        )


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
