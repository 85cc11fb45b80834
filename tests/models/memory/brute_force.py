"""The best schedules of a tiny problem by trying them all, under many budgets at once.

Dynamic programming over stages: a stage sees the past through the stored results alone. For every way to run a stage,
all pairs of what it finds stored and what it keeps are judged together, as arrays over sets of results (bit i: the i-th
of the readable ones). The accounting is the checker's, written once more; a test holds the two against each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.memory.plan import Compute
from loadmaster.models.memory.problem import ForwardOperator, MemoryProblem

Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


def best_objective(problem: MemoryProblem, budget_bytes: int) -> float:
    """The least objective of any schedule (without offload) within the budget; infinite if there is none."""
    return best_objectives(problem, [budget_bytes])[0]


def best_over_an_endless_link(problem: MemoryProblem, budget_bytes: int) -> list[float]:
    """The same with offload over a link that takes no time and has room for everything: only cuts cost something.

    Returns:
        The least objective for each number of results that are sent, from none on.
    """
    sizes, link = problem.output_bytes, problem.host_link
    assert link is not None
    best = []
    for count in range(len(sizes)):
        here = []
        for sent in itertools.combinations(range(len(sizes) - 1), count):
            cuts_us = sum(link.cutting_us(int(sizes[i])) for i in sent)
            here.append(best_objectives(problem, [budget_bytes], sent)[0] + cuts_us)
        best.append(min(here))
    return best


def best_objectives(problem: MemoryProblem, budgets_bytes: Sequence[int], sent: Collection[int] = ()) -> list[float]:
    """The same for each of several budgets, ascending; ``sent`` leave after their last reader and come for nothing."""
    sets = Sets(problem)
    budgets = np.array(budgets_bytes)
    spent = np.full((sets.count, len(budgets)), math.inf)
    spent[0] = 0.0
    for t in range(problem.stage_count):
        for i in sent if t else ():
            here, away = sets.every | sets.mask([i]), sets.every & ~sets.mask([i])
            spent[here] = np.minimum(spent[here], spent[away])
        following = np.full_like(spent, math.inf)
        for computes in runs(problem, t):
            ways = range(len(problem.backward[t - 1].implementations)) if t else [None]
            for way in ways:
                peak = sets.peak_bytes(t, computes, way)
                peak[~np.isfinite(spent[:, -1])] = NEVER
                if t == 0:
                    peak[:, sets.every & sets.mask(sent) > 0] = NEVER
                stored, keep = (np.flatnonzero((peak <= budgets[-1]).any(axis=axis)) for axis in (1, 0))
                peak, cost = peak[np.ix_(stored, keep)], spent[stored] + cost_of(problem, t, computes, way)
                after = np.where(peak[:, :, None] <= budgets, cost[:, None, :], math.inf).min(axis=0, initial=math.inf)
                following[keep] = np.minimum(following[keep], after)
        spent = following
    return [float(c) for c in spent.min(axis=0)]


def cost_of(problem: MemoryProblem, t: int, computes: Sequence[Compute], way: int | None) -> float:
    """What a stage adds to the objective."""
    total = 0.0 if way is None else problem.cost(problem.backward[t - 1].implementations[way])
    for c in computes:
        operator = problem.forward[c.forward]
        choices = operator.implementations if t == 0 else operator.recompute_implementations
        total += problem.cost(choices[c.implementation])
        if c.in_place and operator.in_place is not None:
            total += problem.in_place_cost(operator.in_place)
    return total


def runs(problem: MemoryProblem, t: int) -> Iterator[tuple[Compute, ...]]:
    """Everything that a stage could compute; whether its inputs are there is judged later."""
    ways = []
    for f in problem.forward:
        choices = f.implementations if t == 0 else f.recompute_implementations
        places = [False] if f.in_place is None else [False, True]
        ran: list[Compute | None] = [Compute(f.id, n, p) for n in range(len(choices)) for p in places]
        if t > 0 and not f.recomputable:
            ran = []
        ways.append(ran if t == 0 and f.encodes is None else [None, *ran])
    for chosen in itertools.product(*ways):
        computes = tuple(c for c in chosen if c is not None)
        in_place = {c.forward: c.in_place for c in computes}
        encoded = [f for f in problem.forward if f.encodes is not None and f.id in in_place]
        if all(f.encodes in in_place and (f.in_place is None or _alike(f, in_place)) for f in encoded):
            yield computes


def _alike(f: ForwardOperator, in_place: dict[int, bool]) -> bool:
    return in_place[f.id] == in_place[f.encodes]


class Sets:
    """Sets of readable results, as arrays: everything about each subset that the accounting asks for.

    ``held[s, i]`` are the bytes of result i if subset s holds it, ``before[s, j]`` those of the results of subset s
    with ids below j, ``after[s, j]`` those from j on, ``between[stored, stays]`` the fullest moment just before an
    operator.
    """

    def __init__(self, problem: MemoryProblem) -> None:
        readable = {i for f in problem.forward for i in f.inputs}
        readable |= {i for b in problem.backward for c in b.implementations for i in c.needs}
        self.problem, self.count = problem, 1 << len(readable)
        self.bits = {i: 1 << n for n, i in enumerate(sorted(readable))}
        self.every = np.arange(self.count)
        self.held = np.zeros((self.count, len(problem.forward)), dtype=np.int64)
        for i, bit in self.bits.items():
            self.held[:, i] = np.where(self.every & bit, problem.output_bytes[i], 0)
        nothing = np.zeros((self.count, 1), dtype=np.int64)
        self.before = np.concatenate((nothing, np.cumsum(self.held, axis=1)), axis=1)
        self.after = self.before[:, -1:] - self.before
        self.between = (self.after[:, None, :-1] + self.before[None, :, :-1]).max(axis=2)

    def mask(self, ids: Iterable[int]) -> int:
        """The bits of these results, of those that have one."""
        return sum(self.bits.get(i, 0) for i in set(ids))

    def intact(self, computes: Sequence[Compute]) -> Ints:
        """What is on the device after those computes, for every stored set; -1 where some input is not there."""
        there = self.every.copy()
        lost = np.zeros(self.count, dtype=bool)
        for c in computes:
            operator = self.problem.forward[c.forward]
            inputs = self.mask(operator.inputs)
            lost |= (there & inputs) != inputs
            if c.in_place and operator.encodes is None:
                assert operator.in_place is not None
                there &= ~self.mask([operator.in_place.overwrites])
            there |= self.mask([c.forward])
        return np.where(lost, -1, there)

    def peak_bytes(self, t: int, computes: Sequence[Compute], way: int | None) -> Ints:
        """The peak of stage t for [stored, keep]; more than any budget where the stage is not possible."""
        p = self.problem
        operator = p.backward[t - 1] if t else None
        choice = operator.implementations[way] if operator is not None and way is not None else None
        needs = self.mask(choice.needs if choice is not None else ())
        stays, gradients = self.every | needs, p.gradient_bytes(t)
        peak = gradients + self.between[:, stays]
        for c in computes:
            f = p.forward[c.forward]
            workspace = (f.implementations if t == 0 else f.recompute_implementations)[c.implementation].workspace_bytes
            if c.in_place and f.in_place is not None:
                workspace += f.in_place.workspace_delta_bytes
            live = self.held[:, list(f.live_inputs)].sum(axis=1)
            alone = gradients + workspace + f.output_bytes + f.live_bytes
            running = alone + self.after[:, None, c.forward + 1] + (self.before[stays, c.forward] - live)[None, :]
            peak = np.maximum(peak, running)
        if operator is not None and choice is not None:
            around = choice.workspace_bytes + operator.live_bytes + operator.fixed_bytes + operator.output_bytes
            peak = np.maximum(peak, around + self.before[stays, -1])
        there = self.intact(computes)[:, None]
        computed = self.mask([c.forward for c in computes])
        keep = self.every[None, :]
        possible = (there >= 0) & (keep & ~there == 0) & (needs & ~there == 0) & (needs & ~(keep | computed) == 0)
        return np.where(possible, peak, NEVER)
