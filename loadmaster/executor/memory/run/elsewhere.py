"""The time between a block's forward and backward pass, as an operator of its problem that no graph holds."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.models.memory.plan import Schedule
from loadmaster.models.memory.problem import ForwardOperator, Implementation, MemoryProblem

ELSEWHERE = "everything else"
"""The last forward operator of a block's problem: other blocks run, while this one's kept results are held."""


def with_elsewhere(problem: MemoryProblem, kept_bytes: int, budget_bytes: int) -> MemoryProblem:
    """The problem with an operator between the passes that leaves ``kept_bytes`` of the budget for kept results."""
    last = problem.forward[-1]
    workspace = Implementation(0.0, max(0, budget_bytes - last.fixed_bytes - kept_bytes))
    elsewhere = ForwardOperator(
        id=last.id + 1,
        op=ELSEWHERE,
        inputs=(),
        output_bytes=0,
        live_inputs=(),
        live_bytes=0,
        fixed_bytes=last.fixed_bytes,
        implementations=(workspace,),
        recompute_implementations=(workspace,),
        recomputable=False,
        offloadable=False,
    )
    return replace(problem, forward=(*problem.forward, elsewhere), budget_bytes=budget_bytes)


def without_elsewhere(schedule: Schedule, operators: int) -> Schedule:
    """The schedule of a block's problem without the last operator, which is not one of the block's ``operators``."""
    first = schedule.stages[0]
    if not first.computes or first.computes[-1].forward != operators:
        return schedule
    stages = [replace(s, keep=tuple(i for i in s.keep if i != operators)) for s in schedule.stages]
    return replace(schedule, stages=(replace(stages[0], computes=first.computes[:-1]), *stages[1:]))
