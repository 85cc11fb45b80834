"""The plain step: what training does with memory to spare, and the peak that budgets in percent refer to.

Every operator takes its fastest implementation, nothing is recomputed or offloaded, and a result is freed after the
last operator that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.memory.checker import check
from loadmaster.models.memory.plan import Compute, Schedule, Stage
from loadmaster.models.memory.problem import BackwardImplementation, Implementation, MemoryProblem

_NO_LIMIT_BYTES = 1 << 62


def plain_schedule(problem: MemoryProblem) -> Schedule:
    """The schedule of the plain step."""
    chosen = [_fastest(problem, b.implementations) for b in problem.backward]
    needed_from: list[set[int]] = [set() for _ in range(len(problem.backward) + 2)]
    for k in range(len(problem.backward), 0, -1):
        needed_from[k] = needed_from[k + 1] | set(problem.backward[k - 1].implementations[chosen[k - 1]].needs)
    in_place = {f.id for f in problem.forward if f.encodes is None and _runs_in_place(problem, f.id, needed_from[1])}
    computes = []
    for f in problem.forward:
        if f.encodes is not None and f.id not in needed_from[1]:
            continue
        choice = _fastest(problem, f.implementations)
        over = f.in_place is not None and (f.id if f.encodes is None else f.encodes) in in_place
        computes.append(Compute(f.id, choice, over))
    stages = [Stage(tuple(computes), None, tuple(sorted(needed_from[1])))]
    stages += [Stage((), chosen[k - 1], tuple(sorted(needed_from[k + 1]))) for k in range(1, problem.stage_count)]
    return Schedule(tuple(stages))


def unconstrained_peak_bytes(problem: MemoryProblem) -> int:
    """Resident bytes at the peak of the plain step."""
    return check(problem, plain_schedule(problem), _NO_LIMIT_BYTES).peak_bytes


def _fastest(problem: MemoryProblem, choices: Sequence[Implementation | BackwardImplementation]) -> int:
    costs = [problem.cost(c) for c in choices]
    return costs.index(min(costs))


def _runs_in_place(problem: MemoryProblem, i: int, needed: set[int]) -> bool:
    """Whether i may overwrite its input: it can, and neither the backward pass nor a later operator reads it."""
    target = problem.forward[i].in_place
    if target is None or target.overwrites in needed:
        return False
    return all(reader <= i for reader in problem.consumers[target.overwrites])
