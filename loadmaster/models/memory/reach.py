"""Where in the backward pass each forward result can matter, and which implementations are worth a column.

Shared by the grouped formulations (:mod:`relaxation`, :mod:`banded`, :mod:`offload`). Backward stages 1..K are split
into consecutive *groups*, written by their first stages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.memory.choices import Choice, undominated
from loadmaster.models.memory.problem import Implementation, MemoryProblem
from loadmaster.solvers.program import FloatArray, IntArray

# Bytes enter the programs as MiB: coefficients then lie between 1e-4 and 1e5, which is what solvers' tolerances are
# made for. One tolerance (1e-6) is then about a byte.
MIB = float(1 << 20)


class Row(dict[int, float]):
    """A linear expression being written: column -> coefficient."""

    def plus(self, other: Row, factor: float = 1.0) -> Row:
        """Add ``factor * other`` in place; returns self."""
        for column, value in other.items():
            self[column] = self.get(column, 0.0) + factor * value
        return self

    def also(self, column: int, value: float = 1.0) -> Row:
        """Add one term in place; returns self."""
        self[column] = self.get(column, 0.0) + value
        return self


def term(cells: IntArray, *index: int) -> Row:
    """The column of one cell of a grid, as a row; an empty row where the cell has none (-1)."""
    column = int(cells[index])
    return Row({column: 1.0}) if column >= 0 else Row()


def direct_uses(problem: MemoryProblem) -> list[set[int]]:
    """For every forward result, the stages whose backward operator may read it."""
    uses: list[set[int]] = [set() for _ in problem.forward]
    for operator in problem.backward:
        for choice in operator.implementations:
            for i in choice.needs:
                uses[i].add(operator.id)
    return uses


def last_uses(problem: MemoryProblem) -> IntArray:
    """The last stage at which a result can matter: read by backward, or by a recomputation that can matter [V].

    0 for results that backward never wants.
    """
    last = np.array([max(u, default=0) for u in direct_uses(problem)], dtype=np.int64)
    for operator in reversed(problem.forward):
        i = operator.id
        for j in (*problem.consumers[i], *problem.encodings[i]):
            last[i] = max(last[i], last[j])
    return last


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
    """The implementations on the front of cost against workspace, cheapest first, with their indices.

    When their workspaces differ by less than ``threshold_bytes`` in all, only the cheapest is left: the caller decides
    what to assume of its workspace.
    """
    offered = [Choice(n, problem.cost(c), c.workspace_bytes) for n, c in enumerate(choices)]
    front = sorted(undominated(offered), key=lambda c: c.cost)
    if front[0].workspace_bytes - front[-1].workspace_bytes < threshold_bytes:
        front = front[:1]
    return [(c.index, choices[c.index]) for c in front]


def least_workspace_bytes(choices: Sequence[Implementation]) -> int:
    """The smallest workspace among implementations."""
    return min(c.workspace_bytes for c in choices)


def sizes_mib(problem: MemoryProblem) -> FloatArray:
    """m_i in MiB [V]."""
    return np.asarray(problem.output_bytes / MIB, dtype=np.float64)
