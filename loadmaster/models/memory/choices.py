"""Which implementations are worth a variable, and how byte sizes become coefficients: shared by the formulations."""

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
    """Those that no other one matches in cost, workspace and needs at once; of equals the first.

    Safe in every formulation and every relaxation: a plan that uses a dominated one stays feasible and gets no
    dearer with the one that dominates it.
    """
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
    """``given`` itself if it is among the undominated ``choices``, else one that is as good in every respect."""
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

    All sizes are multiples of some grain g, so a row that may hold r bytes may as well hold half a grain more than
    r rounded down to the grain: no further schedule fits in, and a solver's tolerance stays within the half. Where
    the grain is finer than ``terms`` tolerances, their sum is taken off instead (about a millionth of the budget).
    """

    # The feasibility tolerance solvers use for a row, in units of the row.
    TOLERANCE = 1e-6

    def __init__(self, problem: MemoryProblem, budget_bytes: int, *, terms: int) -> None:
        self.unit_bytes = 1 << max(0, budget_bytes.bit_length() - 11)
        self._grain_bytes = max(1, math.gcd(*_sizes(problem)))
        fuzz_bytes = self.TOLERANCE * terms * self.unit_bytes
        self._margin_bytes = self._grain_bytes / 2 if self._grain_bytes / 2 > fuzz_bytes else -fuzz_bytes

    def units(self, size_bytes: int) -> float:
        """A coefficient."""
        return size_bytes / self.unit_bytes

    def room(self, free_bytes: int) -> float:
        """The right-hand side of a row that may hold that many bytes."""
        grains = free_bytes // self._grain_bytes
        return (grains * self._grain_bytes + self._margin_bytes) / self.unit_bytes


def _sizes(problem: MemoryProblem) -> list[int]:
    sizes = [f.output_bytes for f in problem.forward] + [f.live_bytes for f in problem.forward]
    for f in problem.forward:
        sizes += [c.workspace_bytes for c in (*f.implementations, *f.recompute_implementations)]
        sizes += [] if f.in_place is None else [f.in_place.workspace_delta_bytes]
    for b in problem.backward:
        sizes += [c.workspace_bytes for c in b.implementations]
    return sizes
