# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Launch grid of elementwise kernels, and the elements that a program works on."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 1024  # elements per program
NARROW_LIMIT = 2**31 - 2**16  # positions beyond need 64 bits; the rest is what the last program may run over


def grid(count: int, block: int = BLOCK) -> tuple[int]:
    """Launch grid with one program for every block of this many elements."""
    return (triton.cdiv(count, block),)


def is_wide(count: int) -> bool:
    """Return whether positions need 64 bits: dividing 32-bit ones is several times faster."""
    return count > NARROW_LIMIT


@triton.jit
def positions(WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Positions of the elements of this program, [BLOCK]."""
    start = tl.program_id(0)
    if WIDE:
        start = start.to(tl.int64)
    return start * BLOCK + tl.arange(0, BLOCK)
