r"""The step with memory to spare: the least objective that any budget can buy, and the schedule that has it.

Without a budget nothing is worth computing twice, but a choice is left: the cheapest way to run a backward operator may
read an encoded result, which the forward pass must then compute, or one that an operator running in place overwrites.
So let D_k be the implementations chosen for the backward operators, N what they read, c their costs; f_e the least cost
of encoded result e in the forward pass, E_i those in N that encode the result of operator i; d_i and d_e what running i
in place adds to the costs of i and e. The least objective is

    sum(least cost of j, over all j that encode nothing) + min over D of (sum(c(D_k)) + sum(a_i(N), over operators i))

where a_i(N) is the lesser of these two, of which the second is there where i may overwrite u:

    sum(min(f_e, R_e), e in E_i)
    d_i + sum(min(f_e + d_e, R_e), e in E_i) + (R_u if u, or an encoded result that reads u after i, is in N).

i may overwrite u unless a later operator that encodes nothing reads it too. R_r is a part of what it costs to compute
result r again in a backward stage, such that parts for different r never add up to more than the whole (an encoded
result is computed with its parent: what the parent costs is divided between all that ask for it).

*No schedule is below it.* Take any, with its D and N. Each e in E_i is computed in the forward pass (for f_e, and d_e
more exactly if i runs in place there), or else in a later stage (for R_e or more). If i runs in place in the forward
pass, u is gone; where it is read after that it has been computed again (for R_u or more). No two operators overwrite
the same u there, as the first would take it from the second; so no cost is counted twice, and none is negative.

*It is reached* by the schedule of :func:`formulate`, unless an R is the lesser of a minimum or in one: unless running
in place saves more than computing again costs, or an encoded result is cheaper the second time; and unless a forward
operator reads an encoded result, which it then takes on top.

The minimum over D is found exactly. Only results that change some a_i matter. While the cheapest implementations read
one that is not paid for yet, it is paid for in one branch, and not to be read in the other; the branch with the least
bound goes first. Operators that have no such results in common are searched apart.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from loadmaster.models.memory.choices import Choice, offered_backward, undominated
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem

# So many branches are searched for operators that have results in common; after that the least bound is taken, which
# no schedule is below either. Captured and published graphs take a handful.
MOST_BRANCHES = 2_000

# The implementations worth considering of each backward operator: their costs, and the needs that may cost something.
Options = dict[int, tuple[Choice, ...]]


@dataclass(frozen=True)
class Unconstrained:
    """The least objective of any step, and the implementation of each backward operator that has it."""

    cost: float
    ways: tuple[int, ...]


def formulate(problem: MemoryProblem, budget_bytes: int = sys.maxsize) -> Schedule:
    """The step with memory to spare; under a budget, of its implementations those that fit."""
    ways = unconstrained(problem).ways
    read = {i for b, way in zip(problem.backward, ways, strict=True) for i in b.implementations[way].needs}
    computes = (problem.first_run(read), *(frozenset[int]() for _ in ways))
    return complete(problem, budget_bytes, Decisions(computes, ways))


def unconstrained_cost(problem: MemoryProblem) -> float:
    """The objective of the step with memory to spare: no schedule is below it, whatever its budget."""
    return unconstrained(problem).cost


def unconstrained(problem: MemoryProblem) -> Unconstrained:
    """The least objective of any step, whatever its budget."""
    prices = _Prices(problem)
    options, paid = _options(problem, prices)
    ways = {k: choices[0].index for k, choices in options.items()}
    cost = sum(float(problem.forward_costs(f.id, recompute=False).min()) for f in problem.forward if f.encodes is None)
    cost += sum(choices[0].cost for choices in options.values() if len(choices) == 1)
    elsewhere = set(prices.operators)
    for together in _apart({k: c for k, c in options.items() if len(c) > 1}, prices):
        changed = prices.changed_by(r for choices in together.values() for c in choices for r in c.needs)
        least, chosen = _search(together, changed, prices, paid)
        cost, ways, elsewhere = cost + least, ways | chosen, elsewhere - changed
    cost += sum(prices.of(i, paid) for i in sorted(elsewhere))
    return Unconstrained(cost, tuple(ways[k] for k in sorted(ways)))


class _Prices:
    """The a_i: what it costs that results are read. ``operators``: those i whose a_i is not zero whatever is read."""

    def __init__(self, problem: MemoryProblem) -> None:
        self._problem = problem
        self._losing: dict[int, frozenset[int]] = {}
        self._changing: list[set[int]] = [set() for _ in problem.forward]
        for f in problem.forward:
            for e in problem.encodings[f.id]:
                self._changing[e].add(f.id)
            if f.encodes is not None or f.in_place is None:
                continue
            lost = f.in_place.overwrites
            later = [j for j in problem.consumers[lost] if j > f.id]
            if all(problem.forward[j].encodes is not None for j in later):
                self._losing[f.id] = frozenset((lost, *later))
                for r in self._losing[f.id]:
                    self._changing[r].add(f.id)
        self.operators = sorted({*self._losing, *(f.id for f in problem.forward if problem.encodings[f.id])})

    def changed_by(self, results: Iterable[int]) -> set[int]:
        """The operators whose a_i depends on whether one of these is read."""
        return {i for r in results for i in self._changing[r]}

    def of(self, i: int, read: Collection[int]) -> float:
        """Cost a_i for the results that are read."""
        forward = self._problem.forward
        encoded = [e for e in self._problem.encodings[i] if e in read]
        costs = {e: float(self._problem.forward_costs(e, recompute=False).min()) for e in encoded}
        apart = sum(min(costs[e], self._again(e)) for e in encoded)
        in_place = forward[i].in_place
        if in_place is None or i not in self._losing:
            return apart
        inside = self._problem.in_place_cost(in_place)
        inside += sum(min(costs[e] + self._in_place_cost(e), self._again(e)) for e in encoded)
        if any(r in read for r in self._losing[i]):
            inside += self._again(in_place.overwrites)
        return min(apart, inside)

    def _again(self, r: int) -> float:
        """Part R_r of the cost of computing result r again."""
        f = self._problem.forward[r]
        if f.encodes is None:
            return self._part(r)
        return self._least(r) + self._part(f.encodes)

    def _part(self, r: int) -> float:
        """Cost of computing r again, divided between all that may ask for it: itself and its encoded results."""
        return self._least(r) / (1 + len(self._problem.encodings[r]))

    def _least(self, r: int) -> float:
        if not self._problem.forward[r].recomputable:
            return float("inf")
        return max(0.0, float(self._problem.forward_costs(r, recompute=True).min()) + min(0.0, self._in_place_cost(r)))

    def _in_place_cost(self, r: int) -> float:
        in_place = self._problem.forward[r].in_place
        return 0.0 if in_place is None else self._problem.in_place_cost(in_place)


def _options(problem: MemoryProblem, prices: _Prices) -> tuple[Options, frozenset[int]]:
    """The options of every backward operator, and what those without a choice have paid for."""
    paid: frozenset[int] = frozenset()
    options: Options = {
        k: tuple(
            replace(c, workspace_bytes=0, needs=frozenset(r for r in c.needs if prices.changed_by([r])))
            for c in offered_backward(problem, k)
        )
        for k in range(1, problem.stage_count)
    }
    while True:
        options = {
            k: undominated([replace(c, needs=c.needs - paid) for c in choices]) for k, choices in options.items()
        }
        more = frozenset(r for choices in options.values() if len(choices) == 1 for r in choices[0].needs)
        if not more:
            return options, paid
        paid |= more


def _apart(options: Options, prices: _Prices) -> list[Options]:
    """The options in parts that share no operator whose a_i they change."""
    parts: list[tuple[set[int], Options]] = []
    for k, choices in options.items():
        changed = prices.changed_by(r for c in choices for r in c.needs)
        part: Options = {k: choices}
        for other in [p for p in parts if p[0] & changed]:
            parts.remove(other)
            changed |= other[0]
            part |= other[1]
        parts.append((changed, part))
    return [part for _, part in parts]


def _search(
    options: Options, changed: Collection[int], prices: _Prices, paid: frozenset[int]
) -> tuple[float, dict[int, int]]:
    """The least cost of these operators and of the a_i that they change, and the implementations that have it."""
    branches: list[tuple[float, int, frozenset[int], frozenset[int]]] = []
    number = 0

    def add(read: frozenset[int], unread: frozenset[int]) -> None:
        nonlocal number
        number += 1
        if picked := _cheapest(options, read, unread):
            bound = sum(prices.of(i, read) for i in sorted(changed)) + sum(c.cost for c in picked.values())
            heapq.heappush(branches, (bound, number, read, unread))

    add(paid, frozenset())
    while True:
        bound, _, read, unread = heapq.heappop(branches)
        picked = _cheapest(options, read, unread)
        missing = [r for c in picked.values() for r in c.needs if r not in read]
        if not missing or number > MOST_BRANCHES:
            return bound, {k: c.index for k, c in picked.items()}
        wanted_most = max(sorted(set(missing)), key=missing.count)
        add(read | {wanted_most}, unread)
        add(read, unread | {wanted_most})


def _cheapest(options: Options, read: Collection[int], unread: frozenset[int]) -> dict[int, Choice]:
    """Cheapest option of each operator that reads nothing of ``unread``; empty where one operator has none."""
    picked: dict[int, Choice] = {}
    for k, choices in options.items():
        left = [c for c in choices if unread.isdisjoint(c.needs)]
        if not left:
            return {}
        picked[k] = min(left, key=lambda c: (c.cost, sum(r not in read for r in c.needs), c.index))
    return picked
