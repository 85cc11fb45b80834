# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""g-SpMM in Triton: a program takes some rows and some features, and adds up in the order of the edges.

A tile is [rows, slots, features]. The slots of a row work on that many of its edges at a time and come together at the
end, so that reads are in flight together and no result depends on when a program runs: there are no atomics. Rows of
like length share a launch, and long rows are split into chunks that a second kernel joins
(:mod:`loadmaster.executor.graph.kernels.spmm_schedule`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.graph.kernels.spmm_messages import Side, Work, result_dtype, sum_dtype
from loadmaster.executor.graph.kernels.spmm_parts import (
    best_of_slots,
    join_operands,
    load_operand,
    logsumexp_of_slots,
    take_better,
)

NARROW_LIMIT = 2**31 - 2**16  # tables of more numbers need 64-bit offsets
WIDEST_BLOCK = 256  # features of a tile
NUMBERS_PER_WARP = 512  # of a tile: four loads of 16 bytes in flight for each thread
LAYOUTS = {"full": 0, "outer": 1, "inner": 2, "one": 3}
TARGETS = {"u": 0, "e": 1, "v": 2}
JOINS = {"copy": 0, "add": 1, "sub": 2, "mul": 3, "div": 4, "expsub": 5}
REDUCES = {"sum": 0, "mean": 1, "max": 2, "min": 3, "logsumexp": 4}


class Tile(NamedTuple):
    """Rows and slots of a tile, and the warps that share it."""

    rows: int
    slots: int
    warps: int


# The most that tiles of each sort of row have, at few features. Warps that wait for each other's rows cost little where
# all rows are tiny, and spare starting many programs; where rows differ more, each warp has a program of its own.
TINY = Tile(rows=256, slots=2, warps=4)
SMALL = Tile(rows=8, slots=8, warps=1)
LARGE = Tile(rows=1, slots=64, warps=4)
FEWEST_SLOTS = 4  # of a row that is not tiny


def fit(most: Tile, block: int) -> Tile:
    """The tile for blocks of this many numbers: as many slots, then rows, as its warps have registers for."""
    fewest = min(most.slots, FEWEST_SLOTS) * block
    warps = triton.next_power_of_2(max(most.warps, triton.cdiv(fewest, NUMBERS_PER_WARP)))
    room = max(1, NUMBERS_PER_WARP * warps // block)
    slots = min(most.slots, room)
    return Tile(min(most.rows, max(1, room // slots)), slots, warps)


@triton.jit(do_not_specialize=["count", "order_at", "last_edge"])
def _spmm(
    left,
    right,
    winner,
    ptr,
    neighbour,
    edge,
    order,
    result,
    result_edge,
    count,
    order_at,
    last_edge,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    JOIN: tl.constexpr,
    LEFT_TARGET: tl.constexpr,
    LEFT_LAYOUT: tl.constexpr,
    LEFT_WIDE: tl.constexpr,
    RIGHT_TARGET: tl.constexpr,
    RIGHT_LAYOUT: tl.constexpr,
    RIGHT_WIDE: tl.constexpr,
    REDUCE: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    numbers: tl.constexpr = OUTER * INNER
    item = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = item < count
    if CHUNKS:
        row = tl.load(order + order_at + item, mask=present, other=0)
        begin = tl.load(order + order_at + count + item, mask=present, other=0)
        end = tl.load(order + order_at + 2 * count + item, mask=present, other=0)
        target = item
    else:
        if order is not None:
            row = tl.load(order + order_at + item, mask=present, other=0)
        else:
            row = item
        begin = tl.load(ptr + row, mask=present, other=0)
        end = tl.load(ptr + row + 1, mask=present, other=0)
        target = row
    slot = tl.arange(0, SLOTS)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    inside = feature < numbers
    row_of = row[:, None, None]

    reads_neighbour: tl.constexpr = LEFT_TARGET == 0 or (JOIN != 0 and RIGHT_TARGET == 0)
    needs_edge: tl.constexpr = LEFT_TARGET == 1 or (JOIN != 0 and RIGHT_TARGET == 1) or REDUCE == 2 or REDUCE == 3
    reads_edge: tl.constexpr = edge is not None and (needs_edge or winner is not None)
    total = tl.zeros([ROWS, SLOTS, BLOCK], KIND)
    if REDUCE == 2 or REDUCE == 3:
        chosen = tl.full([ROWS, SLOTS, BLOCK], -1, neighbour.dtype.element_ty)
    if REDUCE == 4:
        top = tl.full([ROWS, SLOTS, BLOCK], -float("inf"), KIND)

    place = begin[:, None] + slot[None, :]
    there = place < end[:, None]
    # What the next turn reads is asked for one turn ahead: one wait for two dependent reads.
    next_neighbour = place
    if reads_neighbour:
        next_neighbour = tl.load(neighbour + place, mask=there, other=0)
    next_edge = place
    if reads_edge:
        next_edge = tl.load(edge + place, mask=there, other=0)
    for _ in range(0, tl.max(end - begin, 0), SLOTS):
        valid = there[:, :, None] & inside
        neighbour_of = next_neighbour[:, :, None]
        edge_of = next_edge[:, :, None]
        place += SLOTS
        there = place < end[:, None]
        next_neighbour = place
        if reads_neighbour:
            next_neighbour = tl.load(neighbour + place, mask=there, other=0)
        next_edge = place
        if reads_edge:
            next_edge = tl.load(edge + place, mask=there, other=0)
        if LEFT_TARGET == 0:
            left_row = neighbour_of
        elif LEFT_TARGET == 1:
            left_row = edge_of
        else:
            left_row = row_of
        found = load_operand(left, left_row, feature, valid, OUTER, INNER, LEFT_LAYOUT, LEFT_WIDE).to(KIND)
        if JOIN != 0:
            if RIGHT_TARGET == 0:
                right_row = neighbour_of
            elif RIGHT_TARGET == 1:
                right_row = edge_of
            else:
                right_row = row_of
            other = load_operand(right, right_row, feature, valid, OUTER, INNER, RIGHT_LAYOUT, RIGHT_WIDE).to(KIND)
            found = join_operands(found, other, JOIN)
        if winner is not None:
            won = load_operand(winner, left_row, feature, valid, OUTER, INNER, 0, LEFT_WIDE)
            found = tl.where(won == edge_of, found, 0.0)
        if REDUCE == 2 or REDUCE == 3:
            total, chosen = take_better(total, chosen, found, edge_of, valid, REDUCE)
        elif REDUCE == 4:
            found = tl.where(valid, found, -float("inf"))
            higher = tl.maximum(top, found)
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * tl.exp(top - shift) + tl.exp(found - shift)
            top = higher
        else:
            # Zero over zero, and the like, must not come from where there is no edge.
            total += tl.where(valid, found, 0.0)

    place_of = target[:, None]
    if WIDE:
        place_of = place_of.to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    kept = present[:, None] & (column < numbers)
    if REDUCE == 2 or REDUCE == 3:
        value, best_edge = best_of_slots(total, chosen, last_edge, REDUCE)
        tl.store(result_edge + place_of * numbers + column, best_edge, mask=kept)
    elif REDUCE == 4:
        value = logsumexp_of_slots(top, total)
    else:
        value = tl.sum(total, 1)
        if REDUCE == 1 and not CHUNKS:
            value = value / tl.maximum(end - begin, 1)[:, None].to(KIND)
    tl.store(result + place_of * numbers + column, value.to(result.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["count", "order_at", "last_edge"])
def _join_chunks(
    partial,
    partial_edge,
    ptr,
    order,
    result,
    result_edge,
    count,
    order_at,
    last_edge,
    NUMBERS: tl.constexpr,
    REDUCE: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    item = tl.program_id(0)
    row = tl.load(order + order_at + item)
    begin = tl.load(order + order_at + count + item)
    end = tl.load(order + order_at + count + item + 1)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    slot = tl.arange(0, SLOTS)[None, :, None]
    total = tl.zeros([1, SLOTS, BLOCK], KIND)
    if REDUCE == 2 or REDUCE == 3:
        chosen = tl.full([1, SLOTS, BLOCK], -1, partial_edge.dtype.element_ty)
    if REDUCE == 4:
        top = tl.full([1, SLOTS, BLOCK], -float("inf"), KIND)
    for start in range(begin, end, SLOTS):
        chunk = start + slot
        valid = (chunk < end) & (feature < NUMBERS)
        if WIDE:
            chunk = chunk.to(tl.int64)
        place = chunk * NUMBERS + feature
        found = tl.load(partial + place, mask=valid, other=0.0)
        if REDUCE == 2 or REDUCE == 3:
            edges = tl.load(partial_edge + place, mask=valid, other=-1)
            total, chosen = take_better(total, chosen, found, edges, valid, REDUCE)
        elif REDUCE == 4:
            found = tl.where(valid, found, -float("inf"))
            higher = tl.maximum(top, found)
            shift = tl.where(higher == -float("inf"), 0.0, higher)
            total = total * tl.exp(top - shift) + tl.exp(found - shift)
            top = higher
        else:
            total += found
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = row + tl.zeros([1, 1], row.dtype)
    place_of = row
    if WIDE:
        place_of = row.to(tl.int64)
    kept = column < NUMBERS
    if REDUCE == 2 or REDUCE == 3:
        value, best_edge = best_of_slots(total, chosen, last_edge, REDUCE)
        tl.store(result_edge + place_of * NUMBERS + column, best_edge, mask=kept)
    elif REDUCE == 4:
        value = logsumexp_of_slots(top, total)
    else:
        value = tl.sum(total, 1)
        if REDUCE == 1:
            degree = tl.load(ptr + row + 1) - tl.load(ptr + row)
            value = value / degree.to(KIND)
    tl.store(result + place_of * NUMBERS + column, value.to(result.dtype.element_ty), mask=kept)


def spmm_triton(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    ptr: Tensor,
    neighbour: Tensor,
    edge: Tensor | None,
    order: Tensor,
    counts: Sequence[int],
    work: Work,
) -> tuple[Tensor, Tensor]:
    """Launch :func:`loadmaster.executor.graph.kernels.operators.spmm_op`; ``order`` and ``counts`` are a schedule's."""
    message, reduce, outer, inner = work
    tiny, small, large, split, chunks = counts
    rows, numbers = ptr.numel() - 1, outer * inner
    dtype = result_dtype(left, right)
    exact = sum_dtype(dtype)
    picks = reduce in ("max", "min")
    result = torch.empty((rows, numbers), dtype=dtype, device=ptr.device)
    result_edge = torch.empty((rows, numbers) if picks else (0,), dtype=neighbour.dtype, device=ptr.device)
    if rows == 0 or numbers == 0:
        return result, result_edge
    block = min(triton.next_power_of_2(numbers), WIDEST_BLOCK)
    columns = triton.cdiv(numbers, block)
    kind = tl.float64 if exact == torch.float64 else tl.float32
    last_edge = neighbour.numel()
    right_side = message.right or message.left
    fixed = {
        "OUTER": outer,
        "INNER": inner,
        "JOIN": JOINS[message.join],
        **operand_side("LEFT", left, message.left),
        **operand_side("RIGHT", left if right is None else right, right_side),
        "REDUCE": REDUCES[reduce],
        "KIND": kind,
        "BLOCK": block,
    }
    taken = order if order.numel() else None
    arrays = (left, right, winner, ptr, neighbour, edge, taken)
    heavy = 2 if picks or reduce == "logsumexp" or exact == torch.float64 else 1

    def launch(count: int, tile: Tile, order_at: int, into: tuple[Tensor, Tensor], *, chunks: bool) -> None:
        _spmm[(triton.cdiv(count, tile.rows), columns)](
            *(*arrays, *into, count, order_at, last_edge),
            **fixed,
            CHUNKS=chunks,
            WIDE=into[0].numel() > NARROW_LIMIT,
            ROWS=tile.rows,
            SLOTS=tile.slots,
            num_warps=tile.warps,
        )

    at = 0
    for count, tile in ((tiny, TINY), (small, SMALL), (large, LARGE)):
        if count:
            launch(count, fit(tile, block * heavy), at, (result, result_edge), chunks=False)
        at += count
    if split:
        partial = torch.empty((chunks, numbers), dtype=exact, device=ptr.device)
        partial_edge = torch.empty((chunks, numbers) if picks else (0,), dtype=neighbour.dtype, device=ptr.device)
        shape = fit(LARGE, block * heavy)
        launch(chunks, shape, at + 2 * split + 1, (partial, partial_edge), chunks=True)
        _join_chunks[(split, columns)](
            partial,
            partial_edge,
            ptr,
            order,
            result,
            result_edge,
            split,
            at,
            last_edge,
            NUMBERS=numbers,
            REDUCE=REDUCES[reduce],
            WIDE=max(result.numel(), partial.numel()) > NARROW_LIMIT,
            KIND=kind,
            SLOTS=shape.slots,
            BLOCK=block,
            num_warps=shape.warps,
        )
    return result, result_edge


def operand_side(name: str, table: Tensor, side: Side) -> dict[str, int | bool]:
    """Constants of a kernel for an operand: its target, its layout, and whether its offsets need 64 bits."""
    return {
        f"{name}_TARGET": TARGETS[side.target],
        f"{name}_LAYOUT": LAYOUTS[side.layout],
        f"{name}_WIDE": table.numel() > NARROW_LIMIT,
    }
