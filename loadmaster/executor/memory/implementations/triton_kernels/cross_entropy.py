# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Rows of logits: normalizers, and gradients in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_BLOCK = 4096  # logits of a row at a time
ROW_WARPS = 8


@triton.jit
def _normalize_rows(logits, classes, normalizer, picked, count, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    kind = tl.float64 if DOUBLE else tl.float32
    largest = tl.full([BLOCK], -float("inf"), kind)
    total = tl.zeros([BLOCK], kind)
    for start in range(0, count, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(logits + row * count + column, mask=column < count, other=-float("inf")).to(kind)
        higher = tl.maximum(largest, score)
        # Nothing to rescale where all was -inf so far: exp(-inf - -inf) would be NaN.
        total = tl.where(higher == -float("inf"), 0.0, total * tl.exp(largest - higher) + tl.exp(score - higher))
        largest = higher
    top = tl.max(largest, 0)
    tl.store(normalizer + row, top + tl.log(tl.sum(total * tl.exp(largest - top), 0)))
    tl.store(picked + row, tl.load(logits + row * count + tl.load(classes + row)).to(kind))


def normalize_rows(logits: Tensor, classes: Tensor, normalizer: Tensor, picked: Tensor) -> None:
    """The logsumexp of each row and the logit of its class, written to ``normalizer`` and ``picked``.

    Args:
        logits: [rows, classes], contiguous.
        classes: int64 [rows].
        normalizer, picked: float32 or float64 [rows].
    """
    rows, count = logits.shape
    if rows:
        double = normalizer.dtype == torch.float64
        _normalize_rows[(rows,)](
            logits, classes, normalizer, picked, count, DOUBLE=double, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS
        )


@triton.jit
def _differentiate_rows(logits, classes, normalizer, scales, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offset = tl.load(normalizer + row)
    scale = tl.load(scales + row)
    place = logits + row * count + column
    score = tl.load(place, mask=column < count, other=0.0).to(offset.dtype)
    error = tl.exp(score - offset) - tl.where(column == tl.load(classes + row), 1.0, 0.0)
    # A row that does not count may hold anything: zero, not zero times what may be infinite.
    error = tl.where(scale == 0.0, 0.0, error * scale)
    tl.store(place, error.to(logits.dtype.element_ty), mask=column < count)


def differentiate_rows(logits: Tensor, classes: Tensor, normalizer: Tensor, scales: Tensor) -> None:
    """Overwrites the logits with their gradient: (softmax - one-hot) times the row's scale.

    Args:
        logits: [rows, classes], contiguous.
        classes: int64 [rows].
        normalizer, scales: float32 or float64 [rows].
    """
    rows, count = logits.shape
    if rows:
        _differentiate_rows[(rows, triton.cdiv(count, ROW_BLOCK))](
            logits, classes, normalizer, scales, count, BLOCK=ROW_BLOCK, num_warps=ROW_WARPS
        )
