"""Checkpointing as people write it by hand: the forward pass in segments, some of which run again as a whole.

A segment that runs again keeps what later ones read of it, and computes everything else again when the backward pass
gets there; the others keep what the backward pass reads. It is the first segments that run again. The backward pass
comes to them last: until then nothing is held of them but what crosses their ends, and by then nothing of the others
is. So a budget asks one thing only: how many run again.

Places that cut the pass into parts of about equal bytes are where segments should end. Each ends nearby, where least
crosses, as between two layers of a model; where much crosses everywhere near, none ends.
Source: [Chen16] for segments of a chain that run again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.memory import baselines
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.groups import missing
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray

# Of a segment's bytes: where more crosses it does not end.
MOST_CROSSING = 0.25


def at_narrow_places(problem: MemoryProblem, number: int) -> IntArray:
    """The segment of every forward operator [V]: consecutive, at most ``number``, each ending where least crosses."""
    count = len(problem.forward)
    before = np.concatenate([[0.0], np.cumsum(problem.output_bytes, dtype=np.float64)])
    crossing, part = _crossing(problem), before[-1] / number
    ends: list[int] = []
    for n in range(1, number):
        low, high = np.searchsorted(before, [(n - 0.5) * part, (n + 0.5) * part])
        near = np.arange(max(int(low), ends[-1] + 1 if ends else 1), min(int(high), count - 1) + 1)
        if near.size and crossing[near].min() <= MOST_CROSSING * part:
            ends.append(int(near[crossing[near].argmin()]))
    return np.searchsorted(ends, np.arange(count), side="right").astype(np.int64)


def _crossing(problem: MemoryProblem) -> FloatArray:
    """Bytes that operators from each one on read of those before it [V]. What cannot be had twice is kept anyway."""
    change = np.zeros(len(problem.forward) + 1)
    for f in problem.forward:
        if f.encodes is None and f.recomputable:
            change[f.id + 1] += f.output_bytes
            change[max(problem.consumers[f.id], default=f.id) + 1] -= f.output_bytes
    crossing: FloatArray = np.cumsum(change)[:-1]
    return crossing


def formulate(
    problem: MemoryProblem, budget_bytes: int, ways: Sequence[int], segment: IntArray, again: int
) -> Schedule:
    """The schedule of :func:`run_again`. It may break the budget: the checker says so."""
    runs, _ = run_again(problem, ways, segment, again)
    return complete(problem, budget_bytes, Decisions(tuple(map(frozenset, runs)), tuple(ways)))


def run_again(
    problem: MemoryProblem, ways: Sequence[int], segment: IntArray, again: int
) -> tuple[list[set[int]], set[int]]:
    """Operators that each stage runs [K + 1], and what the forward pass keeps, where the first ``again`` segments run
    again. ``ways`` [K]: the implementation of each backward operator. ``segment`` [V]: that of each forward
    operator."""
    needs = baselines.needs_of(problem, ways)
    ids = baselines.forward_pass(problem, ways)
    kept = _kept(problem, set(ids), {i for now in needs for i in now}, segment, again)
    there = set(kept)
    runs = [set(ids)]
    for k, now in enumerate(needs):
        entered = {int(segment[i]) for i in now if i not in there}
        ran: set[int] = set()
        if entered:
            ran = missing(problem, {i for later in needs[k:] for i in later if segment[i] in entered}, there)
        there |= ran
        runs.append(ran)
    return runs, kept


def _kept(problem: MemoryProblem, ids: set[int], read: set[int], segment: IntArray, again: int) -> set[int]:
    """Results that the forward pass keeps, among them what cannot be had a second time. Of the segments that run again,
    it keeps what a later one reads; of the others, what the backward pass reads."""
    kept: set[int] = set()
    for i in ids:
        operator = problem.forward[i]
        parent = i if operator.encodes is None else operator.encodes
        once = not (operator.recomputable and problem.forward[parent].recomputable)
        if segment[i] < again:
            wanted = any(segment[j] > segment[i] for j in problem.consumers[i] if j in ids)
        else:
            wanted = i in read
        if once or wanted:
            kept.add(i)
    return kept
