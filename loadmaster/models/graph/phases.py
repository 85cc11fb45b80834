"""Passes over rows that the aggregates of one traversal need; several aggregates can share one pass.

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
    """Pass over the rows of a traversal.

    Attributes:
        aggregates: numbers of values, each logsumexp before the sums that go with it.
        weighted: sum of softmax-weighted rows -> its logsumexp.
        joined: aggregate of joined heads that reads another one, head by head -> heads, and numbers of each.
    """

    aggregates: tuple[int, ...]
    weighted: Mapping[int, int]
    joined: Mapping[int, tuple[int, int]]


def phases(program: Program, aggregates: tuple[int, ...], held: frozenset[int]) -> list[Phase]:
    """Sort aggregates into passes, in their order; values that are ``held`` are read from memory."""
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
    """Heads and the numbers of each, if a value is the joined rows of heads; else None."""
    while program.values[n].op in ("source", "target", "as_node", "spread"):
        (n,) = program.values[n].inputs
    if program.values[n].op != "join_heads":
        return None
    heads, size = program.types[program.values[n].inputs[0]].shape
    return heads, size


def softmax_of(program: Program, n: int) -> int | None:
    """Find the logsumexp of a softmax, ``exp(x - logsumexp(x))``; None for other values."""
    if program.values[n].op != "exp":
        return None
    difference = program.values[program.values[n].inputs[0]]
    if difference.op != "sub":
        return None
    x, total = difference.inputs
    value = program.values[total]
    return total if value.op == "aggregate" and value.reduce == "logsumexp" and value.inputs == (x,) else None


def _reached(program: Program, n: int, held: frozenset[int]) -> set[int]:
    found: set[int] = set()
    waiting = [*program.values[n].inputs]
    while waiting:
        i = waiting.pop()
        if i not in found and i not in held:
            found.add(i)
            waiting += program.values[i].inputs
    return found


def _partner(program: Program, n: int, read: set[int], level: Mapping[int, int], held: frozenset[int]) -> int | None:
    """Find the logsumexp whose pass a sum can share; else None."""
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
    """Power of the softmax of ``total`` in a value: 1 if proportional to it, 0 if it does not read it, else None."""

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
