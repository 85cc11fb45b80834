"""Groups of backward stages: how the stages are split, where each result can matter, which choices are worth a column.

Shared by the grouped formulations, :mod:`relaxation` and :mod:`banded`. The backward stages 1..K are split into
consecutive *groups*, written by their first stages. With ten stages in all, [1, 4, 8] stands for stages 1 to 3, 4 to 7,
and 8 and 9:

>>> groups_of([1, 4, 8], stage_count=10)
[(1, 3), (4, 7), (8, 9)]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.models.memory.choices import ByteScale, Choice, undominated
from loadmaster.models.memory.problem import Implementation, MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray


@dataclass(frozen=True)
class GroupedProblem:
    """A problem with its backward stages in ``groups``: first and last stage of each. ``noticeable_bytes``: what a
    choice of implementation must move in workspace to get columns."""

    problem: MemoryProblem
    groups: list[tuple[int, int]]
    noticeable_bytes: float
    scale: ByteScale

    @cached_property
    def count(self) -> int:
        """Number of forward operators, V."""
        return len(self.problem.forward)

    @cached_property
    def sizes(self) -> FloatArray:
        """Bytes m_i of the results in units of the scale [V]."""
        return np.asarray(self.problem.output_bytes / self.scale.unit_bytes, dtype=np.float64)

    @cached_property
    def wait_us(self) -> float:
        """Unit of the columns of waits: about the longest operator, so that they cost about as much."""
        forward = [c for f in self.problem.forward for c in (*f.implementations, *f.recompute_implementations)]
        backward = [c for b in self.problem.backward for c in b.implementations]
        longest = max(max(c.time_us for c in forward), max(c.time_us for c in backward))
        return math.ldexp(1.0, math.frexp(longest)[1]) if longest > 0.0 else 1.0

    def wanted(self, k: int) -> list[int]:
        """Results that some implementation of backward k reads."""
        return sorted({i for c in self.problem.backward[k - 1].implementations for i in c.needs})


def in_groups(
    problem: MemoryProblem, budget_bytes: int | None, starts: Sequence[int], noticeable: float, *, relaxes: bool
) -> GroupedProblem:
    """The problem in groups; ``budget_bytes`` is None where it is minimized. ``noticeable``: the share of the budget in
    workspace from which a choice of implementation gets columns. ``relaxes``: as of
    :class:`~loadmaster.models.memory.choices.ByteScale`."""
    near_bytes = budget_bytes or int(problem.output_bytes.sum())
    # The bytes of a row are a chain of up to so many others.
    scale = ByteScale(problem, near_bytes, terms=len(problem.forward) + 2, relaxes=relaxes)
    return GroupedProblem(problem, groups_of(starts, problem.stage_count), noticeable * near_bytes, scale)


def direct_uses(problem: MemoryProblem) -> list[set[int]]:
    """Stages whose backward operator may read each forward result."""
    uses: list[set[int]] = [set() for _ in problem.forward]
    for operator in problem.backward:
        for choice in operator.implementations:
            for i in choice.needs:
                uses[i].add(operator.id)
    return uses


def last_uses(problem: MemoryProblem) -> IntArray:
    """Last stage at which a result can matter: read by backward, or by a recomputation that can matter; else 0 [V]."""
    last = np.array([max(u, default=0) for u in direct_uses(problem)], dtype=np.int64)
    for operator in reversed(problem.forward):
        i = operator.id
        for j in (*problem.consumers[i], *problem.encodings[i]):
            last[i] = max(last[i], last[j])
    return last


def missing(problem: MemoryProblem, wanted: Collection[int], there: Collection[int]) -> set[int]:
    """Operators that must run so that everything wanted is there; encoded results bring their parents."""
    made: set[int] = set()
    waiting = [i for i in wanted if i not in there]
    while waiting:
        i = waiting.pop()
        if i in made:
            continue
        made.add(i)
        f = problem.forward[i]
        waiting += [u for u in f.inputs if u not in there and u not in made]
        if f.encodes is not None and f.encodes not in made:
            waiting.append(f.encodes)
    return made


def groups_of(starts: Sequence[int], stage_count: int) -> list[tuple[int, int]]:
    """First and last backward stage of each group; ``stage_count`` counts stage 0 too."""
    ends = [*(s - 1 for s in starts[1:]), stage_count - 1]
    return list(zip(starts, ends, strict=True))


def groups_by_mass(problem: MemoryProblem, count: int) -> list[int]:
    """First stages of about ``count`` groups of equal bytes newly wanted by the backward operators."""
    sizes = problem.output_bytes
    wanted = [sum(int(sizes[i]) for i in operator.implementations[0].needs) for operator in problem.backward]
    total = np.cumsum(wanted)
    starts = [1]
    for g in range(1, count):
        stage = int(np.searchsorted(total, total[-1] * g / count)) + 1
        if starts[-1] < stage <= len(wanted):
            starts.append(stage)
    return starts


def worthwhile(
    problem: MemoryProblem, choices: Sequence[Implementation], threshold_bytes: float
) -> list[tuple[int, Implementation]]:
    """The implementations on the front of cost against workspace, cheapest first, with their indices. When their
    workspaces differ by less than ``threshold_bytes`` in all, only the cheapest is left: the caller decides what to
    assume of its workspace."""
    offered = [Choice(n, problem.cost(c), c.workspace_bytes) for n, c in enumerate(choices)]
    front = sorted(undominated(offered), key=lambda c: c.cost)
    if front[0].workspace_bytes - front[-1].workspace_bytes < threshold_bytes:
        front = front[:1]
    return [(c.index, choices[c.index]) for c in front]


def least_workspace_bytes(choices: Sequence[Implementation]) -> int:
    """The smallest workspace among implementations."""
    return min(c.workspace_bytes for c in choices)
