"""A plan in a moment, whatever the budget leaves: the step is played through, and what does not fit is evicted.

Everything that a backward operator reads later is kept. Where a moment of the step takes more than the budget, the
result is evicted that is cheapest to compute again for its bytes and the stages until it is read: it is dropped where
it was read last, and computed again, with all that it takes, in the stage that reads it next. What is computed again
on the way is kept for later readers while there is room.

Source: Belady's rule weighed by costs, as in dynamic tensor rematerialization [Kirisame21], with the whole step known.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory import baselines
from loadmaster.models.memory.completion import Decisions
from loadmaster.models.memory.groups import last_uses, missing
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained
from loadmaster.solvers.program import FloatArray

# Of more forward operators than this, the table of which reads what is too large.
MOST_OPERATORS = 3_000
# So often a step is played again with more that must stay.
MOST_ATTEMPTS = 12
# So many ancestors of a result are looked at for what it costs to compute again.
MOST_ANCESTORS = 64


@dataclass(frozen=True)
class Weights:
    """How results are weighed against each other for eviction.

    Attributes:
        shared: the part of an ancestor's cost that counts where backward wants that ancestor again anyway.
        distance: the exponent of the stages until the next reader.
    """

    shared: float
    distance: float


WEIGHTS = tuple(Weights(s, d) for s, d in ((0.2, 0.0), (0.2, 0.5), (1.0, 0.5), (0.0, 0.0), (1.0, 0.0), (0.2, 1.0)))


class Eviction:
    """One problem, prepared: bytes and costs, and which live results every operator reads."""

    def __init__(self, problem: MemoryProblem) -> None:
        self.problem = problem
        self.count = len(problem.forward)
        self.sizes = problem.output_bytes.astype(np.float64)
        self.live = np.zeros((self.count, self.count) if self.count <= MOST_OPERATORS else (0, 0))
        self.costs = [float(problem.forward_costs(i, recompute=True).min()) for i in range(self.count)]
        self.taken = np.zeros((2, self.count))
        self.overwrites = np.full(self.count, -1)
        self.saved = np.zeros(self.count)
        last = last_uses(problem)
        self.once_until = [0] * self.count
        for f in problem.forward:
            if self.live.size:
                self.live[f.id, list(f.live_inputs)] = 1.0
            for row, choices in enumerate((f.implementations, f.recompute_implementations)):
                self.taken[row, f.id] = f.output_bytes + f.live_bytes + min(c.workspace_bytes for c in choices)
            if f.in_place is not None and f.in_place.workspace_delta_bytes < 0:
                self.overwrites[f.id], self.saved[f.id] = f.in_place.overwrites, f.in_place.workspace_delta_bytes
            parent = f if f.encodes is None else problem.forward[f.encodes]
            if not (f.recomputable and parent.recomputable):
                self.once_until[f.id] = int(last[f.id])

    def mask(self, ids: Collection[int]) -> FloatArray:
        """1 for each of them [V]."""
        mask = np.zeros(self.count)
        mask[list(ids)] = 1.0
        return mask

    def ways(self) -> list[list[int]]:
        """Backward implementations worth trying: the fastest, those that store least, those that take least."""
        operators = self.problem.backward
        least = [min(range(len(b.implementations)), key=lambda n: self.beside(k, n)) for k, b in enumerate(operators)]
        stored = baselines.least_stored(self.problem, [range(len(b.implementations)) for b in operators])
        found: list[list[int]] = []
        for ways in (list(unconstrained(self.problem).ways), stored, least):
            if ways not in found:
                found.append(ways)
        return found

    def beside(self, k: int, way: int) -> float:
        """What an implementation reads, and its workspace."""
        choice = self.problem.backward[k].implementations[way]
        return choice.workspace_bytes + float(self.sizes[list(choice.needs)].sum())

    def decide(
        self, budget_bytes: float, ways: Sequence[int], weights: Weights, out_of_time: Callable[[], bool]
    ) -> Decisions | None:
        """What to compute again and where; None if nothing was found that fits the budget.

        Where a stage does not fit, what it reads and had lost is not evicted the next time.
        """
        if self.count > MOST_OPERATORS:
            return None
        play = _Play(self, budget_bytes, ways, weights, frozenset(), out_of_time)
        for _ in range(MOST_ATTEMPTS):
            decisions = play.run()
            if decisions is not None or play.lost <= play.pinned or out_of_time():
                return decisions
            play = _Play(self, budget_bytes, play.ways, weights, play.pinned | play.lost, out_of_time)
        return None


class _Play:
    """One step played through.

    Attributes:
        pinned: results that are not evicted while backward reads them later.
        lost: what the stage that did not fit reads, and has evicted before.
    """

    def __init__(
        self,
        given: Eviction,
        budget_bytes: float,
        ways: Sequence[int],
        weights: Weights,
        pinned: frozenset[int],
        out_of_time: Callable[[], bool],
    ) -> None:
        self.given, self.problem, self.pinned, self.out_of_time = given, given.problem, pinned, out_of_time
        self.lost: frozenset[int] = frozenset()
        self.budget, self.ways, self.weights = budget_bytes, list(ways), weights
        self.readers: list[list[int]] = [[] for _ in range(given.count)]
        for k, (b, way) in enumerate(zip(self.problem.backward, ways, strict=True), start=1):
            for i in b.implementations[way].needs:
                self.readers[i].append(k)
        self.stored: set[int] = set()
        self.stays: frozenset[int] | set[int] = frozenset()

    def run(self) -> Decisions | None:
        """Stage by stage; None if one does not fit, or there is no time left."""
        computes: list[frozenset[int]] = []
        for t in range(self.problem.stage_count):
            made = None if self.out_of_time() else self._any_way(t)
            if made is None:
                return None
            computes.append(frozenset(made))
        return Decisions(tuple(computes), tuple(self.ways))

    def _any_way(self, t: int) -> set[int] | None:
        """Play stage t with the backward implementation chosen, or with another where that does not fit."""
        if t == 0:
            return self._stage(0, frozenset())
        choices = self.problem.backward[t - 1].implementations
        stored = self.stored
        for way in sorted(range(len(choices)), key=lambda n: (n != self.ways[t - 1], self.problem.cost(choices[n]))):
            self.ways[t - 1], self.stored = way, set(stored)
            made = self._stage(t, frozenset(choices[way].needs))
            if made is not None:
                return made
        least = min(range(len(choices)), key=lambda n: self.given.beside(t - 1, n))
        self.ways[t - 1], self.lost = least, frozenset(choices[least].needs) - stored
        return None

    def _stage(self, t: int, needs: frozenset[int]) -> set[int] | None:
        """Play stage t, evicting until it fits; what it computes, or None."""
        made = set(range(self.given.count)) if t == 0 else missing(self.problem, needs, self.stored)
        evicted: set[int] = set()
        scores: dict[int, float] = {}
        while True:
            if self.out_of_time() or (t and any(self.given.once_until[i] for i in made)):
                return None
            read = needs | {u for j in made for u in self.problem.forward[j].inputs} if t else needs
            once = {i for i in self.stored | made if self.given.once_until[i] > t}
            later = {i for i in (self.stored | made) - evicted if self._next(i, t) < math.inf}
            keep = later | (needs - made) | once
            worst = self._in_the_way(t, made, keep, needs)
            if worst is None:
                break
            beyond, through = worst
            if evictable := [i for i in beyond if i in later - once - self.pinned and not (i in read and i in through)]:
                i = self._cheapest(evictable, t, keep, scores)
                evicted.add(i)
                if i not in read:
                    self.stored.discard(i)
            elif dropped := [i for i in through if i not in self.stays and self.given.once_until[i] == 0]:
                i = self._cheapest(dropped, t, keep, scores)
                self.stored.discard(i)
                made = missing(self.problem, needs, self.stored)
            else:
                return None
        self.stored, self.stays = keep, needs - made
        return {i for i in made if i in keep or self.problem.forward[i].encodes is None} if t == 0 else made

    def _next(self, i: int, t: int) -> float:
        """The next stage after t that reads i."""
        at = bisect.bisect_right(self.readers[i], t)
        return self.readers[i][at] if at < len(self.readers[i]) else math.inf

    def _in_the_way(
        self, t: int, made: set[int], keep: set[int], needs: frozenset[int]
    ) -> tuple[set[int], set[int]] | None:
        """At the worst moment of stage t: what is there to be kept beyond the stage, what has been there before it.

        None if that moment fits the budget.
        """
        g, stored = self.given, self.stored
        kept, there = g.mask(keep), g.mask(stored)
        held = np.maximum(kept, g.mask(needs)) * g.sizes
        before = np.concatenate(([0.0], np.cumsum(held)))
        after = np.concatenate((np.cumsum((there * g.sizes)[::-1])[::-1], [0.0]))
        gradients = self.problem.gradient_bytes(t)
        running = gradients + g.taken[min(t, 1)] + after[1:] + before[:-1] - g.live @ (kept * g.sizes)
        running += np.where((g.overwrites >= 0) & (held[g.overwrites] == 0), g.saved, 0.0)
        runs = np.full(g.count, -math.inf)
        ids = sorted(made)
        runs[ids] = running[ids]
        j = int(np.argmax(runs))
        idle = gradients + after[:-1] + before[:-1]
        n = int(np.argmax(idle))
        backward = -math.inf
        if t:
            operator = self.problem.backward[t - 1]
            choice = operator.implementations[self.ways[t - 1]]
            beside = operator.live_bytes + operator.fixed_bytes + operator.output_bytes + choice.workspace_bytes
            backward = beside + float(held.sum())
        worst = max(runs[j], idle[n], backward)
        if worst <= self.budget:
            return None
        if worst == backward:
            return keep - needs, set()
        if worst == runs[j]:
            live = set(self.problem.forward[j].live_inputs)
            through = {i for i in stored if i > j}
            return {i for i in keep - needs if i < j and i not in live} | (keep & through), through
        through = {i for i in stored if i >= n}
        return {i for i in keep - needs if i < n} | (keep & through), through

    def _cheapest(self, candidates: list[int], t: int, keep: set[int], scores: dict[int, float]) -> int:
        """The candidate that costs least for what it frees. Scores only grow while results are evicted: lazily."""
        while True:
            for i in candidates:
                if i not in scores:
                    scores[i] = self._score(i, t, keep)
            best = min(candidates, key=lambda i: (scores[i], i))
            fresh = self._score(best, t, keep)
            if fresh <= scores[best] * (1 + 1e-9):
                return best
            scores[best] = fresh

    def _score(self, i: int, t: int, keep: set[int]) -> float:
        """What it costs to compute i again, with ancestors that are not there either, for its bytes and stages."""
        g, total = self.given, 0.0
        seen = {i}
        waiting = [i]
        while waiting and len(seen) < MOST_ANCESTORS:
            u = waiting.pop()
            again = u != i and self._next(u, t) < math.inf
            total += g.costs[u] * (self.weights.shared if again else 1.0)
            f = self.problem.forward[u]
            parents = f.inputs if f.encodes is None else (*f.inputs, f.encodes)
            for p in parents:
                if p not in keep and p not in seen:
                    seen.add(p)
                    waiting.append(p)
        stages = min(self._next(i, t), self.problem.stage_count) - t
        return float(total / (max(g.sizes[i], 1.0) * stages**self.weights.distance))
