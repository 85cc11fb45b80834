"""Better bounds from few boundaries: each stands where the relaxation before it could not be carried out.

A boundary relaxation does not say in which stage of a group of backward stages a result is computed again, so it need
not count it together with all else that stands there. Its optimum is carried out as a schedule. Where stages take more
than the budget, or had to run a slower implementation than was decided to hold it, the worst of them becomes a group
of its own, with a boundary before and after it, and the relaxation is solved again. Where none does, the schedule is a
plan, and as good as the bound. A U-Net needs one to three such stages, around the gradient of its widest concatenation:
all other boundaries together prove less.

The idea is that of abstraction refinement [Clarke00]: what is left out of a model is put back where its answer is
found wrong. Every grouping is a relaxation, so the best bound of them all holds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.models.memory.checker import MemoryCheck, check
from loadmaster.models.memory.completion import Decisions, complete
from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.memory.relaxation_points import Relaxation
from loadmaster.planner.memory.search import LEAST_SECONDS, Search
from loadmaster.solvers.program import FloatArray

# A relaxation on the way to a finer one is solved to this share of the gap asked for.
REFINED_SHARE = 0.25
# A stage that is over the budget by this share of what the worst one is over is as bad.
NEARLY = 0.9


@dataclass
class Refinement:
    """Sequence of ever finer relaxations. ``starts``: first stages of the groups of the latest one; ``optimum``: its
    optimum, None while it has not been solved to its end."""

    search: Search
    starts: list[int]
    optimum: tuple[Relaxation, FloatArray] | None

    def go_on(self, limit_s: float) -> None:
        """Divide and solve until the time is over, the gap is proved, or nothing is left to divide. A relaxation that
        was not solved to its end is solved again."""
        until = time.monotonic() + limit_s
        while not self.search.done() and time.monotonic() + LEAST_SECONDS < until:
            if self.optimum is not None and not self._divide(*self.optimum):
                return
            gap = REFINED_SHARE * self.search.effort.options.gap
            left_s = until - time.monotonic()
            self.optimum = self.search.relax(self.starts, left_s, gap, self.search.objective)
            if self.optimum is None:
                return

    def _divide(self, relaxation: Relaxation, values: FloatArray) -> bool:
        """Carry an optimum out; return whether a stage takes more than the budget, and is now a group of its own."""
        search = self.search
        decisions = relaxation.decisions(values)
        schedule = search.built(lambda: complete(search.problem, search.budget_bytes, decisions))
        with search.effort.on_clock("check"):
            verdict = check(search.problem, schedule, search.budget_bytes)
        if verdict.ok:
            search.adopt(schedule, "relaxation")
        taken = bytes_of_stages(search.problem, verdict, schedule, decisions)
        stage = worst_stage(taken, search.budget_bytes, relaxation.groups)
        if stage is None:
            return False
        self.starts = sorted({*self.starts, stage, min(stage + 1, search.problem.stage_count - 1)})
        return True


def bytes_of_stages(
    problem: MemoryProblem, verdict: MemoryCheck, schedule: Schedule, decisions: Decisions
) -> dict[int, int]:
    """Bytes of each stage, with the backward implementation that was decided where the schedule has a slower one."""
    taken: dict[int, int] = {}
    for e in verdict.events:
        size = e.resident_bytes
        chosen = schedule.stages[e.stage].implementation
        if e.what == "backward" and chosen is not None:
            choices = problem.backward[e.stage - 1].implementations
            decided = choices[decisions.backward[e.stage - 1]]
            size += max(0, decided.workspace_bytes - choices[chosen].workspace_bytes)
        taken[e.stage] = max(taken.get(e.stage, 0), size)
    return taken


def worst_stage(taken: Mapping[int, int], budget_bytes: int, groups: Sequence[tuple[int, int]]) -> int | None:
    """Find the stage that takes most (bytes by stage in ``taken``), of those that share a group with others; None if
    all of them hold the budget. Where stages right after it are over by nearly as much, it is the last of those: there
    the results that stand in all of them are read."""
    shared = {k for first, last in groups if first < last for k in range(first, last + 1)}
    over = {k: size - budget_bytes for k, size in taken.items() if k in shared and size > budget_bytes}
    if not over:
        return None
    stage = max(over, key=lambda k: (over[k], -k))
    most = over[stage]
    while over.get(stage + 1, 0) > NEARLY * most:
        stage += 1
    return stage
