"""Exact minimization of a sum of pairwise costs, one variable after the other: bucket elimination [Dechter99].

To eliminate x is to replace all tables that x is in by one over their other variables:

    new(y, z, ...) = min over x of the sum of the tables

What is left in the end is the optimum. Backwards, each variable takes the state that is best with those after it.
Tables grow with the variables that x shares them with, so the variable that makes the smallest one goes first. Graphs
of training steps, coarsened, are narrow: chains with a few branches. On meshes of three axes states are so many that
tables are too wide all the same (:mod:`.pairwise`).

Example: a(x) = [0, 3], b(x, y) = [[5, 1], [0, 2]]. Eliminating x leaves min(0 + 5, 3 + 0) = 3 for y = 0 and
min(0 + 1, 3 + 2) = 1 for y = 1. The optimum is 1, at y = 1, x = 0.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.solvers.program import FloatArray

# Numbers of one table: beyond it other ways are better.
LARGEST_TABLE = 20_000_000

Pair = tuple[int, int]


class TooWideError(Exception):
    """A table would be too large, or the caller does not want to wait for it."""


@dataclass(frozen=True, eq=False)
class Table:
    """Costs [states of each variable] over ascending variables."""

    variables: tuple[int, ...]
    costs: FloatArray

    def along(self, v: int, chosen: Sequence[int]) -> FloatArray:
        """Costs [states of v] where all other variables are chosen."""
        at = tuple(slice(None) if other == v else chosen[other] for other in self.variables)
        found: FloatArray = self.costs[at]
        return found


class Elimination:
    """Result of eliminating all variables of a sum. ``order`` has those eliminated last first; the least cost
    ``optimum`` is infinite where no assignment is possible. Raises TooWideError if a table would be too large, or
    ``stop`` says so.

    Args:
        unary: [variables][states]
        pairs: (variable, variable) -> [states, states]; infinite where two states are not compatible.
        largest_table: numbers of the largest table that may be made.
        stop: asked before each variable.
    """

    def __init__(
        self,
        unary: Sequence[FloatArray],
        pairs: Mapping[Pair, FloatArray],
        *,
        largest_table: int = LARGEST_TABLE,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._unary, pairs = _settled(unary, pairs)
        states = [len(costs) for costs in unary]
        order = _order(states, pairs)
        if any(size > largest_table for _, _, size in order):
            raise TooWideError
        tables: list[list[Table]] = [[] for _ in unary]
        for (u, v), costs in pairs.items():
            table = Table((u, v), costs) if u < v else Table((v, u), costs.T)
            tables[u].append(table)
            tables[v].append(table)
        self.optimum = 0.0
        for v, others, _ in order:
            if stop():
                raise TooWideError
            scope = (v, *others)
            joined = _expanded(Table((v,), self._unary[v]), scope, states)
            for table in tables[v]:
                joined = joined + _expanded(table, scope, states)
                for other in table.variables:
                    if other != v:
                        tables[other].remove(table)
            left = joined.min(axis=0)
            if not others:
                self.optimum += float(left)
            rest = Table(others, left)
            for other in others:
                tables[other].append(rest)
        self._tables = tables
        self.order = [v for v, _, _ in reversed(order)]

    def costs_of(self, v: int, chosen: Sequence[int]) -> FloatArray:
        """Costs [states] of a variable, given those eliminated after it, with the best of those before it; less what is
        chosen alone."""
        found: FloatArray = self._unary[v] + sum(table.along(v, chosen) for table in self._tables[v])
        return found

    @property
    def best(self) -> list[int]:
        """An assignment of least cost."""
        chosen = [0] * len(self._unary)
        for v in self.order:
            chosen[v] = int(self.costs_of(v, chosen).argmin())
        return chosen


def _settled(
    unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray]
) -> tuple[list[FloatArray], dict[Pair, FloatArray]]:
    """Move costs of pairs to one variable where the other has a single state."""
    own, left = list(unary), {}
    for (u, v), costs in pairs.items():
        if len(own[u]) == 1:
            own[v] = own[v] + costs[0]
        elif len(own[v]) == 1:
            own[u] = own[u] + costs[:, 0]
        else:
            left[u, v] = costs
    return own, left


def _order(states: Sequence[int], pairs: Iterable[Pair]) -> list[tuple[int, tuple[int, ...], int]]:
    """(variable, those that it shares tables with then, numbers of the table), in the order of elimination."""
    near: list[set[int]] = [set() for _ in states]
    for u, v in pairs:
        near[u].add(v)
        near[v].add(u)
    sizes = [_joined(v, near, states) for v in range(len(states))]
    # The smallest first; what has another size by now is there once more.
    queue = [(size, v) for v, size in enumerate(sizes)]
    heapq.heapify(queue)
    found: dict[int, tuple[int, tuple[int, ...], int]] = {}
    while queue:
        size, v = heapq.heappop(queue)
        if v in found or size != sizes[v]:
            continue
        others = tuple(sorted(near[v]))
        found[v] = (v, others, size)
        for other in others:
            near[other] |= set(others)
            near[other] -= {other, v}
        for other in others:
            sizes[other] = _joined(other, near, states)
            heapq.heappush(queue, (sizes[other], other))
    return list(found.values())


def _joined(v: int, near: Sequence[set[int]], states: Sequence[int]) -> int:
    return states[v] * math.prod(states[other] for other in near[v])


def _expanded(table: Table, scope: tuple[int, ...], states: Sequence[int]) -> FloatArray:
    """Give a table an axis for every variable of a scope, of length one where it is not its own."""
    order = sorted(range(len(table.variables)), key=lambda n: scope.index(table.variables[n]))
    shape = [states[v] if v in table.variables else 1 for v in scope]
    return table.costs.transpose(order).reshape(shape)
