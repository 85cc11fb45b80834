# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""g-SDDMM in Triton: a program takes some edges and all or some of their features.

Edges are visited in the order of their destinations where that is known, so that rows of destinations are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.graph.kernels.spmm_messages import Work, sum_dtype
from loadmaster.executor.graph.kernels.spmm_parts import join_operands, load_operand
from loadmaster.executor.graph.kernels.spmm_triton import JOINS, NARROW_LIMIT, operand_side

NUMBERS_PER_PROGRAM = 2048
MOST_EDGES = 256  # of a program
WARPS = 4
WIDEST_BLOCK = 128  # features of a tile


@triton.jit
def _row(source, destination, edge, valid, TARGET: tl.constexpr):
    if TARGET == 0:
        return tl.load(source + edge, mask=valid, other=0)
    elif TARGET == 1:
        return edge
    else:
        return tl.load(destination + edge, mask=valid, other=0)


@triton.jit(do_not_specialize=["count"])
def _sddmm(
    left,
    right,
    winner,
    source,
    destination,
    visit,
    result,
    count,
    OUTER: tl.constexpr,
    INNER: tl.constexpr,
    JOIN: tl.constexpr,
    LEFT_TARGET: tl.constexpr,
    LEFT_LAYOUT: tl.constexpr,
    LEFT_WIDE: tl.constexpr,
    RIGHT_TARGET: tl.constexpr,
    RIGHT_LAYOUT: tl.constexpr,
    RIGHT_WIDE: tl.constexpr,
    SUMMED: tl.constexpr,
    WIDE: tl.constexpr,
    KIND: tl.constexpr,
    EDGES: tl.constexpr,
    OUTER_BLOCK: tl.constexpr,
    INNER_BLOCK: tl.constexpr,
):
    position = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    present = position < count
    if visit is not None:
        edge = tl.load(visit + position, mask=present, other=0)
    else:
        edge = position
    left_row = _row(source, destination, edge, present, LEFT_TARGET)[:, None, None]
    right_row = left_row
    if JOIN != 0:
        right_row = _row(source, destination, edge, present, RIGHT_TARGET)[:, None, None]
    first = tl.program_id(1) * OUTER_BLOCK
    head = first + tl.arange(0, OUTER_BLOCK)[None, :, None]
    total = tl.zeros([EDGES, OUTER_BLOCK], KIND)
    edge_of = edge[:, None, None]
    if WIDE:
        edge_of = edge_of.to(tl.int64)
    for start in range(0, INNER, INNER_BLOCK):
        inner = start + tl.arange(0, INNER_BLOCK)[None, None, :]
        valid = present[:, None, None] & (head < OUTER) & (inner < INNER)
        feature = head * INNER + inner
        found = load_operand(left, left_row, feature, valid, OUTER, INNER, LEFT_LAYOUT, LEFT_WIDE).to(KIND)
        if JOIN != 0:
            other = load_operand(right, right_row, feature, valid, OUTER, INNER, RIGHT_LAYOUT, RIGHT_WIDE).to(KIND)
            found = join_operands(found, other, JOIN)
        if winner is not None:
            won = load_operand(winner, left_row, feature, valid, OUTER, INNER, 0, LEFT_WIDE)
            found = tl.where(won == edge[:, None, None], found, 0.0)
        if SUMMED:
            total += tl.sum(tl.where(valid, found, 0.0), 2)
        else:
            tl.store(result + edge_of * (OUTER * INNER) + feature, found.to(result.dtype.element_ty), mask=valid)
    if SUMMED:
        column = first + tl.arange(0, OUTER_BLOCK)[None, :]
        place = edge[:, None]
        if WIDE:
            place = place.to(tl.int64)
        kept = present[:, None] & (column < OUTER)
        tl.store(result + place * OUTER + column, total.to(result.dtype.element_ty), mask=kept)


def sddmm_triton(
    left: Tensor,
    right: Tensor | None,
    winner: Tensor | None,
    source: Tensor,
    destination: Tensor,
    visit: Tensor | None,
    result: Tensor,
    work: Work,
) -> None:
    """Fill ``result`` as :func:`loadmaster.executor.graph.kernels.operators.sddmm_op` says, with edges taken in the
    order ``visit``; None: as they are numbered."""
    message, reduce, outer, inner = work
    count = source.numel()
    if result.numel() == 0:
        return
    if inner == 0:
        result.zero_()
        return
    inner_block = min(triton.next_power_of_2(inner), WIDEST_BLOCK)
    outer_block = min(triton.next_power_of_2(outer), max(1, WIDEST_BLOCK // inner_block))
    edges = min(MOST_EDGES, NUMBERS_PER_PROGRAM // (inner_block * outer_block))
    exact = sum_dtype(result.dtype)
    right_side = message.right or message.left
    _sddmm[(triton.cdiv(count, edges), triton.cdiv(outer, outer_block))](
        left,
        right,
        winner,
        source,
        destination,
        visit,
        result,
        count,
        OUTER=outer,
        INNER=inner,
        JOIN=JOINS[message.join],
        **operand_side("LEFT", left, message.left),
        **operand_side("RIGHT", left if right is None else right, right_side),
        SUMMED=reduce == "inner",
        WIDE=result.numel() > NARROW_LIMIT,
        KIND=tl.float64 if exact.itemsize == 8 else tl.float32,
        EDGES=edges,
        OUTER_BLOCK=outer_block,
        INNER_BLOCK=inner_block,
        num_warps=WARPS,
    )
