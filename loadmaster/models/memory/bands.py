"""Recomputations that the banded restriction considers: for each result, only slots near where it is wanted.

The best known schedules recompute nearly every tensor at most once, shortly before it is read. Leaving out everything
else shrinks the program tenfold, and loses well under one percent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.memory.groups import direct_uses, last_uses
from loadmaster.models.memory.problem import MemoryProblem

BoolArray = NDArray[np.bool_]


def slots_of_stages(groups: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Slot of every backward stage."""
    return {k: h for h, (a, b) in enumerate(groups) for k in range(a, b + 1)}


def everything(problem: MemoryProblem, groups: Sequence[tuple[int, int]]) -> BoolArray:
    """Every recomputation that can still matter [slots, V]."""
    last = last_uses(problem)
    starts = np.array([a for a, _ in groups])
    recomputable = np.array([f.recomputable for f in problem.forward])
    allowed: BoolArray = (last[None, :] >= starts[:, None]) & recomputable[None, :]
    return allowed


def band(problem: MemoryProblem, groups: Sequence[tuple[int, int]], width: int, reach: int) -> BoolArray:
    """Recomputations close to their use [slots, V]: up to ``width`` slots before a slot that reads the result. Of each
    result read in a slot, the ``reach`` nearest ancestors may be recomputed there too, however far their own uses are
    (long skips need it)."""
    count = len(problem.forward)
    slot = slots_of_stages(groups)
    read_in = [{slot[k] for k in stages} for stages in direct_uses(problem)]
    allowed = np.zeros((len(groups), count), dtype=bool)
    for i, slots in enumerate(read_in):
        for h in slots:
            allowed[max(0, h - width) : h + 1, i] = True
    for i, slots in enumerate(read_in):
        nearest = _nearest_ancestors(problem, i, reach)
        for h in slots:
            allowed[h, nearest] = True
    # A result that only other forward operators read goes with them.
    for i in reversed(range(count)):
        if not read_in[i]:
            for j in (*problem.consumers[i], *problem.encodings[i]):
                allowed[:, i] |= allowed[:, j]
    return allowed & everything(problem, groups)


def _nearest_ancestors(problem: MemoryProblem, i: int, reach: int) -> list[int]:
    found: list[int] = []
    waiting = _parents(problem, i)
    while waiting and len(found) < reach:
        nearest = max(waiting)
        waiting.discard(nearest)
        found.append(nearest)
        waiting |= _parents(problem, nearest)
    return found


def _parents(problem: MemoryProblem, i: int) -> set[int]:
    f = problem.forward[i]
    return set(f.inputs) | ({f.encodes} if f.encodes is not None else set())


def with_pairs(allowed: BoolArray, pairs: Iterable[tuple[int, int]]) -> BoolArray:
    """Copy ``allowed`` with these (slot, result) pairs added."""
    widened = allowed.copy()
    for h, i in pairs:
        widened[h, i] = True
    return widened
