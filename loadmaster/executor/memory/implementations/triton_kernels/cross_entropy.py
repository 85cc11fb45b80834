# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Cross-entropy of rows of logits, each row by one program: its loss, then the gradient in the logits' place.

The second pass over a row finds it in the cache of the first, so that logits cross the memory bus once each way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.triton_kernels.elementwise import launch, positions

ROW_BLOCK = 2048  # logits of a row per load
ROW_WARPS = 8


@triton.jit
def _mapped(logits, SCALE: tl.constexpr, CAP: tl.constexpr):
    if CAP > 0:
        # The hyperbolic tangent, which is 1 where the exponential is infinite.
        logits = CAP - 2 * CAP / (tl.exp(2 * SCALE / CAP * logits) + 1)
    elif SCALE != 1:
        logits *= SCALE
    return logits


@triton.jit
def _scores(place, column, count, kind: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr):
    scores = tl.load(place + column, mask=column < count, other=-float("inf")).to(kind)
    if CAP > 0 or SCALE < 0:
        scores = tl.where(column < count, _mapped(scores, SCALE, CAP), -float("inf"))
    else:
        scores = _mapped(scores, SCALE, CAP)
    return scores


@triton.jit
def _cross_entropy_rows(
    logits,
    targets,
    class_weights,
    all_weights,
    row_weights,
    z_weights,
    losses,
    count,
    stride,
    ignored,
    KEPT: tl.constexpr,
    SPREAD: tl.constexpr,
    SCALE: tl.constexpr,
    CAP: tl.constexpr,
    GRADIENTS: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kind: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    target = tl.load(targets + row)
    place = logits + row * stride
    counts = target != ignored
    dead = target == ignored
    square = tl.full([], 0.0, kind)
    if z_weights is not None:
        square = tl.load(z_weights + row).to(kind)
        dead = dead & (square == 0)
        target = tl.where(counts, target, 0)
    if dead:
        tl.store(losses + row, 0.0)
        if GRADIENTS:
            # Zero, not zero times what may be infinite: such a row may hold anything.
            for start in range(0, count, BLOCK):
                column = start + tl.arange(0, BLOCK)
                tl.store(place + column, tl.zeros([BLOCK], logits.dtype.element_ty), mask=column < count)
    else:
        largest = tl.full([BLOCK], -float("inf"), kind)
        total = tl.zeros([BLOCK], kind)
        spread = tl.zeros([BLOCK], kind)
        # Four loads for one change of scale: exponentials are what this loop would otherwise wait for.
        for start in range(0, count, 4 * BLOCK):
            column = start + tl.arange(0, BLOCK)
            a = _scores(place, column, count, kind, SCALE, CAP)
            b = _scores(place, column + BLOCK, count, kind, SCALE, CAP)
            c = _scores(place, column + 2 * BLOCK, count, kind, SCALE, CAP)
            d = _scores(place, column + 3 * BLOCK, count, kind, SCALE, CAP)
            higher = tl.maximum(largest, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)))
            # Where all was -inf so far: exp(-inf - -inf) would be NaN.
            top = tl.where(higher == -float("inf"), 0.0, higher)
            added = tl.exp(a - top) + tl.exp(b - top) + tl.exp(c - top) + tl.exp(d - top)
            total = total * tl.exp(largest - top) + added
            largest = higher
            if SPREAD > 0:
                for part in tl.static_range(4):
                    place_of = column + part * BLOCK
                    score = tl.load(place + place_of, mask=place_of < count, other=0.0).to(kind)
                    score = _mapped(score, SCALE, CAP)
                    if class_weights is not None:
                        score *= tl.load(class_weights + place_of, mask=place_of < count, other=0.0).to(kind)
                    spread += score
        top = tl.max(largest, 0)
        offset = top + tl.log(tl.sum(total * tl.exp(largest - top), 0))
        of_row = tl.full([], 1.0, kind)
        if row_weights is not None:
            of_row = tl.load(row_weights + row).to(kind)
        weight = tl.full([], 1.0, kind)
        whole = tl.full([], 0.0, kind) + count
        if class_weights is not None:
            weight = tl.load(class_weights + target).to(kind)
            whole = tl.load(all_weights).to(kind)
        picked = of_row * weight * KEPT
        share = of_row * SPREAD
        if z_weights is not None:
            picked = tl.where(counts, picked, 0.0)
            share = tl.where(counts, share, 0.0)
        loss = picked * (offset - _mapped(tl.load(place + target).to(kind), SCALE, CAP))
        factor = picked
        if SPREAD > 0:
            loss += share * (whole * offset - tl.sum(spread, 0))
            factor += share * whole
        if z_weights is not None:
            loss = tl.where(counts, loss, 0.0) + tl.where(square != 0, square * offset * offset, 0.0)
            factor += 2 * square * offset
        tl.store(losses + row, loss)
        if GRADIENTS:
            tl.debug_barrier()  # no warp writes over what another one has still to read
            for start in range(0, count, BLOCK):
                column = start + tl.arange(0, BLOCK)
                mapped = _scores(place, column, count, kind, SCALE, CAP)
                error = tl.exp(mapped - offset) * factor
                if SPREAD > 0:
                    even = tl.full([BLOCK], 0.0, kind) + share
                    if class_weights is not None:
                        even *= tl.load(class_weights + column, mask=column < count, other=0.0).to(kind)
                    error -= even
                error -= tl.where(column == target, picked, 0.0)
                if CAP > 0:
                    error *= SCALE * (1 - (mapped / CAP) * (mapped / CAP))
                elif SCALE != 1:
                    error *= SCALE
                tl.store(place + column, error.to(logits.dtype.element_ty), mask=column < count)


def cross_entropy_rows(
    logits: Tensor,
    targets: Tensor,
    weights: Sequence[Tensor | None],
    losses: Tensor,
    ignore_index: int,
    smoothing: float,
    scale: float,
    cap: float,
    gradients: bool,
) -> None:
    """Triton form of :func:`loadmaster.executor.memory.implementations.cross_entropy.cross_entropy_rows`; ``weights``
    are those of classes, of rows, and of the rows' z-loss."""
    rows, count = logits.shape
    class_weights, row_weights, z_weights = (None if w is None else w.contiguous() for w in weights)
    if rows:
        _cross_entropy_rows[(rows,)](
            logits,
            targets.contiguous(),
            class_weights,
            None if class_weights is None else class_weights.sum(dtype=losses.dtype),
            row_weights,
            z_weights,
            losses,
            count,
            logits.stride(0),
            ignore_index,
            KEPT=1 - smoothing,
            SPREAD=smoothing / count,
            SCALE=scale,
            CAP=cap,
            GRADIENTS=gradients,
            DOUBLE=losses.dtype == torch.float64,
            BLOCK=ROW_BLOCK,
            num_warps=ROW_WARPS,
        )


@triton.jit
def _scaled(x, scale, result, count, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    element = positions(WIDE, BLOCK)
    factor = tl.load(scale)
    value = tl.load(x + element, mask=element < count, other=0.0).to(factor.dtype) * factor
    tl.store(result + element, value.to(result.dtype.element_ty), mask=element < count)


def scaled(x: Tensor, scale: Tensor, result: Tensor) -> None:
    """Write ``x * scale`` to ``result``: same shape, both contiguous, any two dtypes."""
    launch(_scaled, x.numel(), x, scale, result, x.numel())
