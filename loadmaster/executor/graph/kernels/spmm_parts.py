# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Parts of the kernels of g-SpMM and g-SDDMM in Triton: reading operands, joining them, and bringing slots together.

Codes of targets, layouts, joins and reductions are those of :mod:`loadmaster.executor.graph.kernels.spmm_triton`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_operand(
    table, row, feature, valid, OUTER: tl.constexpr, INNER: tl.constexpr, LAYOUT: tl.constexpr, WIDE: tl.constexpr
):
    """Numbers of a table's rows, repeated as the layout says. ``row`` and ``feature`` broadcast to ``valid``."""
    if WIDE:
        row = row.to(tl.int64)
    if LAYOUT == 0:
        place = row * (OUTER * INNER) + feature
    elif LAYOUT == 1:
        place = row * OUTER + feature // INNER
    elif LAYOUT == 2:
        place = row * INNER + feature % INNER
    else:
        place = row + feature * 0
    return tl.load(table + place, mask=valid, other=0)


@triton.jit
def join_operands(left, right, JOIN: tl.constexpr):
    if JOIN == 1:
        return left + right
    elif JOIN == 2:
        return left - right
    elif JOIN == 3:
        return left * right
    elif JOIN == 4:
        return left / right
    else:
        return tl.exp(left - right)


@triton.jit
def take_better(best, chosen, found, edges, valid, REDUCE: tl.constexpr):
    """The better of what was found before and now, and its edge; the first NaN is better than all."""
    sign: tl.constexpr = 1.0 if REDUCE == 2 else -1.0
    better = (found * sign > best * sign) | (found != found) | (chosen < 0)
    better = valid & better & ((best == best) | (chosen < 0))
    return tl.where(better, found, best), tl.where(better, edges, chosen)


@triton.jit
def best_of_slots(best, chosen, largest, REDUCE: tl.constexpr):
    """The best of each row's slots, and the lowest edge that has it: [rows, features] each; -1 where there is none."""
    sign: tl.constexpr = 1.0 if REDUCE == 2 else -1.0
    taken = chosen >= 0
    nan = (best != best) & taken
    some_nan = tl.max(nan.to(tl.int32), 1) > 0
    scored = tl.where(taken, tl.where(nan, 0.0, best * sign), -float("inf"))
    top = tl.max(scored, 1)
    wins = tl.where(some_nan[:, None, :], nan, taken & (scored == top[:, None, :]))
    edge = tl.min(tl.where(wins, chosen, largest), 1)
    empty = tl.max(taken.to(tl.int32), 1) == 0
    value = tl.where(some_nan, float("nan"), top * sign)
    return tl.where(empty, 0.0, value), tl.where(empty, -1, edge)


@triton.jit
def logsumexp_of_slots(top, total):
    """Log of the sum of the exponentials of all slots of each row: [rows, features]; 0 where there are none."""
    most = tl.max(top, 1)
    most = tl.where(most == -float("inf"), 0.0, most)
    summed = tl.sum(tl.where(total > 0, total * tl.exp(top - most[:, None, :]), 0.0), 1)
    return tl.where(summed > 0, most + tl.log(tl.where(summed > 0, summed, 1.0)), 0.0)
