# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Dropout from a seed, over memory in its own order: the row-major number of an element is computed, not looked up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from loadmaster.executor.memory.implementations.triton_kernels.launch import BLOCK, grid, is_wide, positions
from loadmaster.executor.steps.layouts import dense, row_major_steps

SPLITMIX_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
SPLITMIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
SPLITMIX_2 = tl.constexpr(0x94D049BB133111EB)
DIGITS = 4  # dimensions that the kernel tells apart: those that are in memory in another order than row-major


@triton.jit
def _seeded_dropout(
    x,
    seed,
    result,
    count,
    threshold,
    STEP_0: tl.constexpr,
    SIZE_1: tl.constexpr,
    STEP_1: tl.constexpr,
    SIZE_2: tl.constexpr,
    STEP_2: tl.constexpr,
    SIZE_3: tl.constexpr,
    STEP_3: tl.constexpr,
    SCALE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    element = positions(WIDE, BLOCK)
    valid = element < count
    rest = element
    number = rest % SIZE_3 * STEP_3
    rest = rest // SIZE_3
    number += rest % SIZE_2 * STEP_2
    rest = rest // SIZE_2
    number += rest % SIZE_1 * STEP_1
    rest = rest // SIZE_1
    number += rest * STEP_0
    z = (number.to(tl.int64) + 1).to(tl.uint64) * SPLITMIX_GOLDEN + tl.load(seed).to(tl.uint64)
    z = (z ^ (z >> 30)) * SPLITMIX_1
    z = (z ^ (z >> 27)) * SPLITMIX_2
    z = z ^ (z >> 31)
    keep = (z >> 32).to(tl.int64) >= threshold
    value = tl.load(x + element, mask=valid, other=0.0)
    if value.dtype != tl.float64:
        value = value.to(tl.float32)
    scaled = value * SCALE * keep.to(value.dtype)
    tl.store(result + element, scaled.to(result.dtype.element_ty), mask=valid)


def seeded_dropout(x: Tensor, seed: Tensor, scale: float, threshold: int) -> Tensor:
    """Triton form of :func:`loadmaster.executor.memory.implementations.dropout.seeded_dropout`."""
    x = dense(x)
    steps = row_major_steps(x)
    if len(steps) > DIGITS:
        copy = seeded_dropout(x.contiguous(), seed, scale, threshold)
        return torch.empty_like(x).copy_(copy)
    result = torch.empty_like(x)
    count = x.numel()
    if count:
        steps = [(1, 0)] * (DIGITS - len(steps)) + steps
        digits = {f"SIZE_{i}": size for i, (size, _) in enumerate(steps) if i}
        digits |= {f"STEP_{i}": step for i, (_, step) in enumerate(steps)}
        _seeded_dropout[grid(count)](
            x, seed, result, count, threshold, **digits, SCALE=scale, WIDE=is_wide(count), BLOCK=BLOCK
        )
    return result
