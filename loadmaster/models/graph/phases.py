"""The passes over rows that the aggregates of one traversal need, and which of them one pass can share.

An aggregate that reads another one of its kernel runs over the rows again, once that one is complete. An exception is
the sum of softmax-weighted rows, ``sum of exp(x - logsumexp(x)) * y``: it shares the pass of the logsumexp. Both are
kept relative to the greatest x so far, and the sum is divided at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from loadmaster.models.graph.program import Program
from loadmaster.models.graph.spaces import is_coarser


@dataclass(frozen=True)
class Phase:
    """One pass.

    Attributes:
        aggregates: numbers of values, each logsumexp before the sums that go with it.
        weighted: of sums of softmax-weighted rows, the logsumexp.
        joined: of aggregates of joined heads that read another one, head by head: heads, and numbers of each.
    """

    aggregates: tuple[int, ...]
    weighted: Mapping[int, int]
    joined: Mapping[int, tuple[int, int]]


def phases(program: Program, aggregates: tuple[int, ...], held: frozenset[int]) -> list[Phase]:
    """The passes in their order.

    Args:
        held: numbers of values that are read from memory.
    """
    level: dict[int, int] = {}
    weighted: dict[int, int] = {}
    joined: dict[int, tuple[int, int]] = {}
    for n in sorted(aggregates):
        inside = _reached(program, n, held)
        read = inside.intersection(aggregates)
        partner = _partner(program, n, read, level, held)
        if partner is not None:
            weighted[n] = partner
            level[n] = level[partner]
        else:
            level[n] = 1 + max((level[i] for i in read), default=-1)
        heads = [found for i in sorted(inside) if (found := joined_heads(program, i)) is not None]
        if read and heads and program.types[n].shape == (heads[0][0] * heads[0][1],):
            joined[n] = heads[0]
    return [
        Phase(
            tuple(n for n in sorted(level) if level[n] == at),
            {n: partner for n, partner in weighted.items() if level[n] == at},
            {n: heads for n, heads in joined.items() if level[n] == at},
        )
        for at in sorted(set(level.values()))
    ]


def joined_heads(program: Program, n: int) -> tuple[int, int] | None:
    """Heads and the numbers of each, where a value is the rows of heads joined; None elsewhere."""
    while program.values[n].op in ("source", "target", "as_node", "spread"):
        (n,) = program.values[n].inputs
    if program.values[n].op != "join_heads":
        return None
    heads, size = program.types[program.values[n].inputs[0]].shape
    return heads, size


def softmax_of(program: Program, n: int) -> int | None:
    """The logsumexp by which a value is a softmax: ``exp(x - logsumexp(x))``; None where it is none."""
    if program.values[n].op != "exp":
        return None
    difference = program.values[program.values[n].inputs[0]]
    if difference.op != "sub":
        return None
    x, total = difference.inputs
    value = program.values[total]
    return total if value.op == "aggregate" and value.reduce == "logsumexp" and value.inputs == (x,) else None


def _reached(program: Program, n: int, held: frozenset[int]) -> set[int]:
    """What a value is made from inside the kernel."""
    found: set[int] = set()
    waiting = [*program.values[n].inputs]
    while waiting:
        i = waiting.pop()
        if i not in found and i not in held:
            found.add(i)
            waiting += program.values[i].inputs
    return found


def _partner(program: Program, n: int, read: set[int], level: Mapping[int, int], held: frozenset[int]) -> int | None:
    """The logsumexp whose pass a sum can share."""
    value = program.values[n]
    if value.reduce not in ("sum", "mean") or not read:
        return None
    last = [i for i in read if level[i] == max(level[j] for j in read)]
    if len(last) != 1 or program.values[last[0]].reduce != "logsumexp":
        return None
    (total,) = last
    shape = joined_heads(program, value.inputs[0]) or program.types[n].shape
    weights = program.types[total].shape
    is_by_row = shape[: len(weights)] == weights and len(shape) <= len(weights) + 1
    return total if is_by_row and _power(program, value.inputs[0], total, held) == 1 else None


def _power(program: Program, n: int, total: int, held: frozenset[int]) -> int | None:
    """1 where a value is proportional to the softmax of ``total``, 0 where it does not read that, None elsewhere."""

    @cache
    def power(n: int) -> int | None:
        value = program.values[n]
        if n in held or not value.inputs:
            return 0
        if softmax_of(program, n) == total and n not in held:
            to = program.types[total].space
            return None if is_coarser(program.types[n].space, to) else 1
        if n == total:
            return None
        given = [power(i) for i in value.inputs]
        if not any(p != 0 for p in given):
            return 0
        if None in given:
            return None
        if value.op in ("mul", "dot"):
            return 1 if sum(p or 0 for p in given) == 1 else None
        if value.op == "div":
            return 1 if given == [1, 0] else None
        if value.op in ("add", "sub"):
            return 1 if given == [1, 1] else None
        return 1 if value.op in ("scale", "neg", "row_sum", "part", "pad", "repeat_last", "join_heads") else None

    return power(n)
