"""Timetable of a schedule: which moves and updates of which groups are due at each position of a step.

A position is reached when the phase before it has been launched. Positions of the next step count on from P, so that an
action of one step may be due in the next.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum

from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem


class Do(IntEnum):
    """Actions at a position, in the order in which they run there."""

    UPDATE = 0
    SEND_GRADIENTS = 1
    FREE_GRADIENTS = 2
    FREE_STATE = 3
    DROP_WEIGHTS = 4
    LOAD_STATE = 5
    LOAD_WEIGHTS = 6
    NEED_WEIGHTS = 7


# Those that are part of an update, and the last of these.
OF_UPDATE = frozenset({Do.UPDATE, Do.SEND_GRADIENTS, Do.FREE_GRADIENTS, Do.FREE_STATE, Do.LOAD_STATE})


@dataclass(frozen=True, order=True)
class Action:
    """One action: what, in the order of need, for which group, and how many steps after the one that it belongs to."""

    do: Do
    needed_at: int
    group: int
    steps_later: int


def timetable(problem: TrainingProblem, schedule: Schedule) -> tuple[tuple[Action, ...], ...]:
    """List the actions at each position 0 .. P - 1, in order."""
    phases = Phases(problem)
    count = len(phases)
    at: defaultdict[int, list[Action]] = defaultdict(list)

    def due(do: Do, position: int, group: int, needed_at: int = 0) -> None:
        at[position % count].append(Action(do, needed_at - position // count * count, group, position // count))

    for g, (group, plan) in enumerate(zip(problem.groups, schedule.groups, strict=True)):
        if plan.update == "device":
            assert plan.update_after is not None
            due(Do.UPDATE, plan.update_after + 1, g)
        if plan.update_stay is not None:
            due(Do.LOAD_STATE, plan.update_stay.load_at, g, plan.update_after or 0)
            due(Do.FREE_STATE, plan.update_stay.gone_at, g)
        if plan.gradient_gone_at is not None:
            due(Do.SEND_GRADIENTS, phases.last_gradient(group) + 1, g)
            due(Do.FREE_GRADIENTS, plan.gradient_gone_at, g)
        if plan.copy_load_at is not None:
            due(Do.LOAD_WEIGHTS, plan.copy_load_at, g, phases.next_use(group))
            due(Do.NEED_WEIGHTS, phases.next_use(group), g)
        for stay in plan.stays:
            first = phases.use_from(g, stay.load_at)
            due(Do.LOAD_WEIGHTS, stay.load_at, g, first)
            due(Do.NEED_WEIGHTS, first, g)
            due(Do.DROP_WEIGHTS, stay.gone_at, g)
    return tuple(tuple(sorted(at[position])) for position in range(count))
