"""A placement plan joined with its problem, as pictures need it: the replayed step, and what is away when.

Times are microseconds from the end of the step before, sizes bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loadmaster.api.report.words import expect_held
from loadmaster.models.placement.accesses import add_cyclic
from loadmaster.models.placement.checker import PlacementCheck, check_plan
from loadmaster.models.placement.plan import Moves, PlacementPlan
from loadmaster.models.placement.policies.outcome import PolicyRun, of_plan
from loadmaster.models.placement.problem import PlacementProblem
from loadmaster.solvers.program import IntArray


@dataclass(frozen=True)
class Away:
    """A block that a plan moves: its absences in one step, and the operators (``positions``), of all absences, that run
    while it is away."""

    block: int
    size_bytes: int
    absences: int
    positions: int


@dataclass(frozen=True)
class PlacementView:
    """A plan and its replay, ready to draw. ``away_bytes``: role -> [operators] bytes that are not on the device, and
    will be read, while each runs; ``away``: the blocks that move, those with the most bytes moved first."""

    problem: PlacementProblem
    plan: PlacementPlan
    moves: Moves
    check: PlacementCheck
    run: PolicyRun
    away_bytes: Mapping[str, IntArray]
    away: tuple[Away, ...]


def view(problem: PlacementProblem, plan: PlacementPlan) -> PlacementView:
    """Replay a plan. Raises InputError if it is of another problem, holds no moves, or does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    assert plan.moves is not None
    by_role: dict[str, IntArray] = {}
    positions: dict[int, list[int]] = defaultdict(list)
    for absence in plan.moves.absences:
        block = problem.blocks[absence.block]
        found = by_role.setdefault(block.role, np.zeros(len(problem.operators), dtype=np.int64))
        add_cyclic(found, absence.gone_at, absence.load_at, block.size_bytes)
        positions[absence.block].append(absence.load_at - absence.gone_at)
    away = [Away(b, problem.blocks[b].size_bytes, len(lengths), sum(lengths)) for b, lengths in positions.items()]
    away.sort(key=lambda a: (-a.size_bytes * a.absences, a.block))
    run = of_plan(problem, plan.moves, verdict)
    return PlacementView(problem, plan, plan.moves, verdict, run, by_role, tuple(away))
