"""Plans by eviction, in a moment and under any budget: the step is played through, and what does not fit is evicted.

Everything that a backward operator reads later is kept. Where a moment of the step takes more than the budget, the
result is evicted that is cheapest to compute again for its bytes and the stages until it is read: it is dropped where
it was read last, and computed again, with all that it takes, in the stage that reads it next. What is computed again
on the way is kept for later readers while there is room.

Source: Belady's rule weighed by costs, as in dynamic tensor rematerialization [Kirisame21], with the whole step known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.memory import baselines
from loadmaster.models.memory.completion import Decisions
from loadmaster.models.memory.groups import last_uses, missing
from loadmaster.models.memory.liveness import BoolArray
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.unconstrained import unconstrained
from loadmaster.solvers.program import FloatArray

# So often a step is played again with more that must stay.
MOST_ATTEMPTS = 12
# So many ancestors of a result are looked at for what it costs to compute again.
MOST_ANCESTORS = 64


@dataclass(frozen=True)
class Weights:
    """Weights that compare results for eviction. ``shared``: the part of an ancestor's cost that counts where backward
    wants that ancestor again anyway; ``distance``: the exponent of the stages until the next reader."""

    shared: float
    distance: float


WEIGHTS = tuple(Weights(s, d) for s, d in ((0.2, 0.0), (0.2, 0.5), (1.0, 0.5), (0.0, 0.0), (1.0, 0.0), (0.2, 1.0)))


class Eviction:
    """Problem prepared for eviction: bytes and costs, and which live results every operator reads."""

    def __init__(self, problem: MemoryProblem) -> None:
        self.problem = problem
        self.count = len(problem.forward)
        self.sizes = problem.output_bytes.astype(np.float64)
        self.costs = [float(problem.forward_costs(i, recompute=True).min()) for i in range(self.count)]
        self.taken = np.zeros((2, self.count))
        self.overwrites = np.full(self.count, -1)
        self.saved = np.zeros(self.count)
        self.once_until = np.zeros(self.count, dtype=np.int64)
        self.encodes = np.array([f.encodes is not None for f in problem.forward])
        last = last_uses(problem)
        for f in problem.forward:
            for row, choices in enumerate((f.implementations, f.recompute_implementations)):
                self.taken[row, f.id] = f.output_bytes + f.live_bytes + min(c.workspace_bytes for c in choices)
            if f.in_place is not None and f.in_place.workspace_delta_bytes < 0:
                self.overwrites[f.id], self.saved[f.id] = f.in_place.overwrites, f.in_place.workspace_delta_bytes
            parent = f if f.encodes is None else problem.forward[f.encodes]
            if not (f.recomputable and parent.recomputable):
                self.once_until[f.id] = last[f.id]
        live = [(f.id, i) for f in problem.forward for i in f.live_inputs]
        self._live_readers, self._live_read = np.array(live, dtype=np.int64).reshape(-1, 2).T

    def mask(self, ids: Collection[int]) -> BoolArray:
        """Mask of some results [V]."""
        mask = np.zeros(self.count, dtype=bool)
        mask[list(ids)] = True
        return mask

    def live_bytes(self, kept: BoolArray) -> FloatArray:
        """Bytes of the kept results that each operator reads live [V]."""
        sizes = (kept * self.sizes)[self._live_read]
        return np.bincount(self._live_readers, weights=sizes, minlength=self.count).astype(np.float64)

    def ways(self) -> list[list[int]]:
        """List backward implementations worth trying: the fastest, those that store least, those that take least."""
        operators = self.problem.backward
        least = [min(range(len(b.implementations)), key=lambda n: self.beside(k, n)) for k, b in enumerate(operators)]
        stored = baselines.least_stored(self.problem, [range(len(b.implementations)) for b in operators])
        found: list[list[int]] = []
        for ways in (list(unconstrained(self.problem).ways), stored, least):
            if ways not in found:
                found.append(ways)
        return found

    def beside(self, k: int, way: int) -> float:
        """Bytes that a backward implementation reads, and its workspace."""
        choice = self.problem.backward[k].implementations[way]
        return choice.workspace_bytes + float(self.sizes[list(choice.needs)].sum())

    def nothing_kept(self, out_of_time: Callable[[], bool]) -> Decisions | None:
        """Decide to compute everything again in every stage that reads it, where that is allowed: least bytes where a
        stage reads little. None if there is no time to write that down."""
        operators = self.problem.backward
        ways = [min(range(len(b.implementations)), key=lambda n: self.beside(k, n)) for k, b in enumerate(operators)]
        stored = set(np.flatnonzero(self.once_until).tolist())
        computes = [frozenset(range(self.count))]
        for operator, way in zip(operators, ways, strict=True):
            if out_of_time():
                return None
            computes.append(frozenset(missing(self.problem, operator.implementations[way].needs, stored)))
        return Decisions(tuple(computes), tuple(ways))

    def decide(
        self, budget_bytes: float, ways: Sequence[int], weights: Weights, out_of_time: Callable[[], bool]
    ) -> Decisions | None:
        """Decide what to compute again and where; None if nothing was found that fits the budget. Where a stage does
        not fit, what it reads and had lost is not evicted the next time."""
        play = _Play(self, budget_bytes, ways, weights, frozenset(), out_of_time)
        for _ in range(MOST_ATTEMPTS):
            decisions = play.run()
            if decisions is not None or play.lost <= play.pinned or out_of_time():
                return decisions
            play = _Play(self, budget_bytes, play.ways, weights, play.pinned | play.lost, out_of_time)
        return None


class _Play:
    """Step that is played through once. Sets of results are masks [V]: ``pinned`` are not evicted while backward reads
    them later; ``lost`` were evicted, and are read by the stage that did not fit."""

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
        self._pinned = given.mask(pinned)
        self._readers: list[list[int]] = [[] for _ in range(given.count)]  # stages, the last one first
        for k, (b, way) in reversed([*enumerate(zip(self.problem.backward, ways, strict=True), start=1)]):
            for i in b.implementations[way].needs:
                self._readers[i].append(k)
        # The next stage that reads each.
        self._next = np.array([r[-1] if r else math.inf for r in self._readers], dtype=np.float64)
        self._stored = given.mask(())
        self._stays = given.mask(())

    def run(self) -> Decisions | None:
        """Play all stages; None if one does not fit, or the time is up."""
        computes: list[frozenset[int]] = []
        for t in range(self.problem.stage_count):
            made = None if self.out_of_time() else self._any_way(t)
            if made is None:
                return None
            computes.append(frozenset(np.flatnonzero(made).tolist()))
        return Decisions(tuple(computes), tuple(self.ways))

    def _any_way(self, t: int) -> BoolArray | None:
        """Play stage t with the backward implementation chosen, or with another where that does not fit."""
        if t == 0:
            return self._stage(0, frozenset())
        choices = self.problem.backward[t - 1].implementations
        for i in choices[self.ways[t - 1]].needs:
            self._readers[i].pop()
            self._next[i] = self._readers[i][-1] if self._readers[i] else math.inf
        stored = self._stored
        for way in sorted(range(len(choices)), key=lambda n: (n != self.ways[t - 1], self.problem.cost(choices[n]))):
            self.ways[t - 1], self._stored = way, stored.copy()
            made = self._stage(t, frozenset(choices[way].needs))
            if made is not None:
                return made
        least = min(range(len(choices)), key=lambda n: self.given.beside(t - 1, n))
        self.ways[t - 1], self.lost = least, frozenset(choices[least].needs) - self._ids(stored)
        return None

    def _stage(self, t: int, needs: frozenset[int]) -> BoolArray | None:
        """Play stage t, evicting until it fits; return what it computes, or None."""
        g = self.given
        needed, coming, once = g.mask(needs), self._next < math.inf, g.once_until > t
        made = self._missing(needs) if t else ~g.mask(())
        gone = g.mask(())
        scores: dict[int, float] = {}
        while True:
            if self.out_of_time() or (t and g.once_until[made].any()):
                return None
            there = self._stored | made
            later = there & coming & ~gone
            keep = later | (needed & ~made) | (there & once)
            worst = self._in_the_way(t, made, keep, needed)
            if worst is None:
                break
            beyond, through = worst
            read = needed | (self._inputs(made) if t else False)
            evictable = beyond & later & ~(once | self._pinned) & ~(read & through)
            dropped = through & ~self._stays & (g.once_until == 0)
            if evictable.any():
                i = self._cheapest(evictable, t, keep, scores)
                gone[i] = True
                if not read[i]:
                    self._stored[i] = False
            elif dropped.any():
                self._stored[self._cheapest(dropped, t, keep, scores)] = False
                made = self._missing(needs)
            else:
                return None
        self._stored, self._stays = keep, needed & ~made
        return made & (keep | ~g.encodes) if t == 0 else made

    def _ids(self, mask: BoolArray) -> set[int]:
        return set(np.flatnonzero(mask).tolist())

    def _missing(self, needs: frozenset[int]) -> BoolArray:
        return self.given.mask(missing(self.problem, needs, self._ids(self._stored)))

    def _inputs(self, made: BoolArray) -> BoolArray:
        return self.given.mask({u for j in self._ids(made) for u in self.problem.forward[j].inputs})

    def _in_the_way(
        self, t: int, made: BoolArray, keep: BoolArray, needed: BoolArray
    ) -> tuple[BoolArray, BoolArray] | None:
        """Find what is held at the worst moment of stage t: results kept beyond the stage, and results there before it.
        None if that moment fits the budget."""
        g, order = self.given, np.arange(self.given.count)
        held = (keep | needed) * g.sizes
        before = np.concatenate(([0.0], np.cumsum(held)))
        after = np.concatenate((np.cumsum((self._stored * g.sizes)[::-1])[::-1], [0.0]))
        gradients = self.problem.gradient_bytes(t)
        running = gradients + g.taken[min(t, 1)] + after[1:] + before[:-1] - g.live_bytes(keep)
        running += np.where((g.overwrites >= 0) & (held[g.overwrites] == 0), g.saved, 0.0)
        runs = np.where(made, running, -math.inf)
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
            return keep & ~needed, g.mask(())
        if worst == runs[j]:
            through = self._stored & (order > j)
            past = (order < j) & ~g.mask(self.problem.forward[j].live_inputs)
        else:
            through = self._stored & (order >= n)
            past = order < n
        return keep & ((past & ~needed) | through), through

    def _cheapest(self, candidates: BoolArray, t: int, keep: BoolArray, scores: dict[int, float]) -> int:
        """Find the candidate that costs least for what it frees. Scores only grow while results are evicted: lazily."""
        ids, kept = np.flatnonzero(candidates).tolist(), keep.tolist()
        for i in ids:
            if i not in scores:
                scores[i] = self._score(i, t, kept)
        while True:
            best: int = min(ids, key=lambda i: (scores[i], i))
            fresh = self._score(best, t, kept)
            if fresh <= scores[best] * (1 + 1e-9):
                return best
            scores[best] = fresh

    def _score(self, i: int, t: int, kept: Sequence[bool]) -> float:
        """Score a result: the cost of computing it again, with ancestors that are not kept, per byte and stage."""
        g, total = self.given, 0.0
        seen = {i}
        waiting = [i]
        while waiting and len(seen) < MOST_ANCESTORS:
            u = waiting.pop()
            again = u != i and self._readers[u]
            total += g.costs[u] * (self.weights.shared if again else 1.0)
            f = self.problem.forward[u]
            parents = f.inputs if f.encodes is None else (*f.inputs, f.encodes)
            for p in parents:
                if not kept[p] and p not in seen:
                    seen.add(p)
                    waiting.append(p)
        stages = min(self._next[i], self.problem.stage_count) - t
        return float(total / (max(g.sizes[i], 1.0) * stages**self.weights.distance))
