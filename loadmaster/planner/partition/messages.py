"""A bound on a sum of pairwise costs, and an assignment, where tables are too wide: messages [Kolmogorov06].

Costs are moved between variables and pairs, so that every assignment costs what it did:

    a(s) + to(s)  for a variable,   b(s, t) - to(s) - to(t)  for a pair

What the least entries of all of them come to is below every assignment. In a pass each variable, in order, takes from
its pairs with earlier ones as much as it can and gives its pairs with later ones an equal part of what it has. Passes
go to and fro, and the bound never falls. It ends where the relaxation of the program (:mod:`loadmaster.models.partition
.transport`) does or a little below, in a hundredth of the time.

On the way an assignment is read off: each variable takes the state that is best with those before it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.solvers.program import FloatArray

Pair = tuple[int, int]

# The search ends where as many rounds, to and fro, raise the bound by no more than that part of it, and after so many.
_PATIENCE, _LEAST_GAIN, MOST_ROUNDS = 20, 1e-4, 400
# Sums of the same costs in another order are equal to so many digits.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Reading:
    """Assignment and bounds that messages found: ``chosen``, the best assignment that was read off, and its ``cost``,
    infinite where none was; ``bound`` of all, infinite where none is possible; ``least`` [variables][states], of those
    that have the state."""

    chosen: list[int]
    cost: float
    bound: float
    least: list[FloatArray]


class _Edge:
    """Pair of variables, the earlier one first, and what it gave to each of the two."""

    def __init__(self, u: int, v: int, costs: FloatArray) -> None:
        self.u, self.v, self.costs = u, v, np.ascontiguousarray(costs)
        self.to_u, self.to_v = np.zeros(len(costs)), np.zeros(costs.shape[1])

    @property
    def left(self) -> FloatArray:
        """Costs of the pair less what it gave to its variables."""
        found: FloatArray = self.costs - self.to_u[:, None] - self.to_v
        return found


def passed(unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray], stop: Callable[[], bool]) -> Reading:
    """Pass messages until the bound hardly rises. ``stop`` is asked between rounds; there is one in any case.

    Args:
        unary: [variables][states]
        pairs: (variable, variable) -> [states, states]; infinite where two states are not compatible. Every state is
            compatible with one of each neighbour (:func:`supported`).
    """
    return _Messages(unary, pairs).reading(stop)


def supported(unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray]) -> list[FloatArray] | None:
    """Make states impossible that no state of some neighbour is compatible with: their costs are infinite. None if a
    variable has no possible state left."""
    found = [costs.copy() for costs in unary]
    near: list[list[tuple[int, FloatArray]]] = [[] for _ in unary]
    for (u, v), costs in pairs.items():
        finite = np.isfinite(costs)
        near[u].append((v, finite))
        near[v].append((u, finite.T))
    waiting = deque(range(len(unary)))
    while waiting:
        u = waiting.popleft()
        alive = np.isfinite(found[u])
        for v, finite in near[u]:
            lonely = np.isfinite(found[v]) & ~finite[alive].any(axis=0)
            if lonely.any():
                found[v][lonely] = np.inf
                waiting.append(v)
        if not alive.any():
            return None
    return found


class _Messages:
    def __init__(self, unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray]) -> None:
        self.unary = unary
        self.order = _by_nearness(len(unary), pairs)
        place = {v: n for n, v in enumerate(self.order)}
        self.edges = [
            _Edge(u, v, costs) if place[u] < place[v] else _Edge(v, u, costs.T) for (u, v), costs in pairs.items()
        ]
        self.later: list[list[_Edge]] = [[] for _ in unary]
        self.earlier: list[list[_Edge]] = [[] for _ in unary]
        for edge in self.edges:
            self.later[edge.u].append(edge)
            self.earlier[edge.v].append(edge)
        self.own = [costs.copy() for costs in unary]
        self.best: tuple[float, list[int]] = (math.inf, [0] * len(unary))

    def reading(self, stop: Callable[[], bool]) -> Reading:
        raised = -math.inf
        for n in range(MOST_ROUNDS):
            self._forth()
            self._back()
            if n % _PATIENCE == 0:
                bound = self._sum(costs.min() for costs in self.own)
                if bound - raised <= _LEAST_GAIN * abs(bound) or bound >= self.best[0]:
                    break
                raised = bound
            if stop():
                break
        least = [float(costs.min()) for costs in self.own]
        bound = self._sum([*least, *(edge.left.min() for edge in self.edges)])
        # Rounding errors grow with what is added up.
        bound -= ROUNDING * self._sum(abs(costs).min() for costs in self.own)
        above = [bound + (costs - low) * (1 - ROUNDING) for costs, low in zip(self.own, least, strict=True)]
        return Reading(self.best[1], self.best[0], bound, above)

    def _forth(self) -> None:
        chosen = [0] * len(self.unary)
        for v in self.order:
            beside = sum((e.costs[chosen[e.u]] for e in self.earlier[v]), self.unary[v])
            chosen[v] = int(sum((e.to_u for e in self.later[v]), beside).argmin())
            for edge in self.earlier[v]:
                taken = (edge.costs - edge.to_u[:, None]).min(axis=0)
                self.own[v] = self.own[v] + taken - edge.to_v
                edge.to_v = taken
            share = self.own[v] / max(len(self.later[v]), len(self.earlier[v]), 1)
            for edge in self.later[v]:
                edge.to_u = edge.to_u - share
            self.own[v] = self.own[v] - len(self.later[v]) * share
        cost = self._cost(chosen)
        if cost < self.best[0]:
            self.best = (cost, chosen)

    def _back(self) -> None:
        for v in reversed(self.order):
            for edge in self.later[v]:
                taken = (edge.costs - edge.to_v).min(axis=1)
                self.own[v] = self.own[v] + taken - edge.to_u
                edge.to_u = taken
            share = self.own[v] / max(len(self.later[v]), len(self.earlier[v]), 1)
            for edge in self.earlier[v]:
                edge.to_v = edge.to_v - share
            self.own[v] = self.own[v] - len(self.earlier[v]) * share

    def _cost(self, chosen: Sequence[int]) -> float:
        own = (costs[x] for costs, x in zip(self.unary, chosen, strict=True))
        return self._sum([*own, *(edge.costs[chosen[edge.u], chosen[edge.v]] for edge in self.edges)])

    @staticmethod
    def _sum(costs: Iterable[float]) -> float:
        return math.fsum(map(float, costs))


def _by_nearness(count: int, pairs: Iterable[Pair]) -> list[int]:
    """Order variables breadth first."""
    near: list[list[int]] = [[] for _ in range(count)]
    for u, v in pairs:
        near[u].append(v)
        near[v].append(u)
    order: dict[int, None] = {}
    for start in range(count):
        waiting = deque([start])
        while waiting:
            v = waiting.popleft()
            if v not in order:
                order[v] = None
                waiting.extend(near[v])
    return list(order)
