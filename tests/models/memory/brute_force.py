"""The best schedule of a tiny problem by trying them all: every stage is judged by the checker's own replay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from loadmaster.models.memory.checker import _Replay
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import MemoryProblem

Stored = frozenset[int]


def best_objective(problem: MemoryProblem, budget_bytes: int) -> float:
    """The least objective of any schedule (without offload) that the checker accepts; infinite if there is none.

    Dynamic programming over stages: a stage sees the past through the stored results alone.
    """
    readable = {i for f in problem.forward for i in f.inputs}
    readable |= {i for b in problem.backward for c in b.implementations for i in c.needs}
    reached: dict[Stored, float] = {frozenset(): 0.0}
    for t in range(problem.stage_count):
        following: dict[Stored, float] = {}
        for stored, spent in sorted(reached.items(), key=lambda item: item[1]):
            for computes, way in _runs(problem, t, stored):
                cost = _cost(problem, t, computes, way)
                there = sorted(readable & (stored | {c.forward for c in computes}))
                for keep in map(frozenset, _subsets(there)):
                    if following.get(keep, math.inf) <= spent + cost:
                        continue
                    replay = _Replay(problem, Schedule(()), budget_bytes)
                    replay._stage(t, Stage(computes, way, tuple(sorted(keep))), set(stored))
                    if not replay.violations:
                        assert math.isclose(replay.objective, cost)
                        following[keep] = spent + cost
        reached = following
    return min(reached.values(), default=math.inf)


def _runs(problem: MemoryProblem, t: int, stored: Stored) -> Iterator[tuple[tuple[Compute, ...], int | None]]:
    """What a stage could run, but for what reads results that are nowhere."""
    for computes in _computes(problem, t, stored):
        if t == 0:
            yield computes, None
            continue
        there = stored | {c.forward for c in computes}
        for way, choice in enumerate(problem.backward[t - 1].implementations):
            if set(choice.needs) <= there:
                yield computes, way


def _cost(problem: MemoryProblem, t: int, computes: tuple[Compute, ...], way: int | None) -> float:
    total = 0.0 if way is None else problem.cost(problem.backward[t - 1].implementations[way])
    for c in computes:
        operator = problem.forward[c.forward]
        choices = operator.implementations if t == 0 else operator.recompute_implementations
        total += problem.cost(choices[c.implementation])
        if c.in_place and operator.in_place is not None:
            total += problem.in_place_cost(operator.in_place)
    return total


def _subsets(ids: list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(ids, size) for size in range(len(ids) + 1))


def _computes(problem: MemoryProblem, t: int, stored: Stored) -> Iterator[tuple[Compute, ...]]:
    optional = [f.id for f in problem.forward if t > 0 or f.encodes is not None]
    compulsory = {f.id for f in problem.forward} - set(optional)
    for extra in _subsets(optional):
        run = sorted(compulsory | set(extra))
        if all(set(problem.forward[j].inputs) <= stored | {i for i in run if i < j} for j in run):
            yield from itertools.product(*(_ways_to_run(problem, t, j) for j in run))


def _ways_to_run(problem: MemoryProblem, t: int, j: int) -> list[Compute]:
    operator = problem.forward[j]
    choices = operator.implementations if t == 0 else operator.recompute_implementations
    in_place = [False] if operator.in_place is None else [False, True]
    return [Compute(j, n, p) for n in range(len(choices)) for p in in_place]
