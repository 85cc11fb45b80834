"""Implementations that are worth a variable, and byte sizes as coefficients: shared by the formulations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.models.memory.problem import MemoryProblem


@dataclass(frozen=True)
class Choice:
    """One implementation that is worth considering: its index in the problem, objective, workspace and needs."""

    index: int
    cost: float
    workspace_bytes: int
    needs: frozenset[int] = frozenset()


def undominated(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Choices that no other one matches in cost, workspace and needs at once; of equals the first. Safe in every
    formulation and relaxation: a plan with a dominated one stays feasible and gets no dearer with the one that
    dominates it."""
    kept: list[Choice] = []
    for c in sorted(choices, key=lambda c: (c.cost, c.workspace_bytes, len(c.needs), c.index)):
        if not any(k.workspace_bytes <= c.workspace_bytes and k.needs <= c.needs for k in kept):
            kept.append(c)
    return tuple(sorted(kept, key=lambda c: c.index))


def offered_forward(problem: MemoryProblem, i: int, *, recompute: bool) -> list[Choice]:
    """All implementations of forward operator i in the forward pass, or when recomputed, by index."""
    operator = problem.forward[i]
    offered = operator.recompute_implementations if recompute else operator.implementations
    return [Choice(n, problem.cost(c), c.workspace_bytes) for n, c in enumerate(offered)]


def offered_backward(problem: MemoryProblem, k: int) -> list[Choice]:
    """All implementations of backward operator k = 1..K, by index."""
    offered = problem.backward[k - 1].implementations
    return [Choice(n, problem.cost(c), c.workspace_bytes, frozenset(c.needs)) for n, c in enumerate(offered)]


def forward_choices(problem: MemoryProblem, i: int, *, recompute: bool) -> tuple[Choice, ...]:
    """The undominated implementations of forward operator i in the forward pass, or when recomputed."""
    return undominated(offered_forward(problem, i, recompute=recompute))


def backward_choices(problem: MemoryProblem, k: int) -> tuple[Choice, ...]:
    """The undominated implementations of backward operator k = 1..K."""
    return undominated(offered_backward(problem, k))


def dominating(given: Choice, choices: Sequence[Choice]) -> Choice:
    """Find ``given`` itself among the undominated ``choices``, or else one that is as good in every respect."""
    return next(
        (c for c in choices if c.index == given.index),
        next(
            c
            for c in choices
            if c.cost <= given.cost and c.workspace_bytes <= given.workspace_bytes and c.needs <= given.needs
        ),
    )


class ByteScale:
    """Turns bytes into coefficients near one thousand, and room into right-hand sides a tolerance cannot cross.

    All sizes are multiples of some grain g, so a row that may hold r bytes may as well hold half a grain more than r
    rounded down to the grain: no further schedule fits in, and what solvers get wrong stays within the half. Such rows
    are exact (``is_exact``). Where the grain is finer than that, no row is: a program ``relaxes`` or restricts. About a
    millionth of the budget is added to the room of a program whose bound and verdict are to be proofs, and taken off
    that of one whose points are to be plans.

    ``unit_bytes``: what one unit of a row stands for, a power of two, so that dividing by it is exact. ``fuzz_bytes``:
    by how much a row may be wrong.
    """

    # The feasibility tolerance solvers use for a row, in units of the row.
    TOLERANCE = 1e-6
    # What a presolve gets wrong of rows near one thousand. Seen: points 3e-5 beyond a row of 1,745 and called feasible.
    PRESOLVE_TOLERANCE = 1e-3

    def __init__(self, problem: MemoryProblem, budget_bytes: int, *, terms: int, relaxes: bool) -> None:
        self.unit_bytes = 1 << max(0, budget_bytes.bit_length() - 11)
        self._grain_bytes = max(1, math.gcd(*_sizes(problem)))
        self._every_grain_bytes = max(1, math.gcd(self._grain_bytes, *_resident(problem)))
        self.fuzz_bytes = (self.PRESOLVE_TOLERANCE + self.TOLERANCE * terms) * self.unit_bytes
        self.is_exact = self._grain_bytes / 2 > self.fuzz_bytes
        inexact_bytes = self.fuzz_bytes if relaxes else -self.fuzz_bytes
        self._margin_bytes = self._grain_bytes / 2 if self.is_exact else inexact_bytes

    def units(self, size_bytes: int) -> float:
        """Coefficient of a number of bytes."""
        return size_bytes / self.unit_bytes

    def room(self, free_bytes: int) -> float:
        """The right-hand side of a row that may hold that many bytes."""
        grains = free_bytes // self._grain_bytes
        return (grains * self._grain_bytes + self._margin_bytes) / self.unit_bytes

    def least_bytes(self, units: float) -> int:
        """The least peak that a plan can have where no point of a relaxation takes less than so many units."""
        grains = (units * self.unit_bytes - self.fuzz_bytes) / self._every_grain_bytes
        return math.ceil(grains) * self._every_grain_bytes


def _resident(problem: MemoryProblem) -> list[int]:
    gradients = [size for b in problem.backward for size in (b.live_bytes, b.fixed_bytes, b.output_bytes)]
    return [*(f.fixed_bytes for f in problem.forward), *gradients]


def _sizes(problem: MemoryProblem) -> list[int]:
    sizes = [f.output_bytes for f in problem.forward] + [f.live_bytes for f in problem.forward]
    for f in problem.forward:
        sizes += [c.workspace_bytes for c in (*f.implementations, *f.recompute_implementations)]
        sizes += [] if f.in_place is None else [f.in_place.workspace_delta_bytes]
    for b in problem.backward:
        sizes += [c.workspace_bytes for c in b.implementations]
    return sizes
