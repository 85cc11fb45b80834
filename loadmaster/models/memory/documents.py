"""JSON of the kind ``memory``: problem and plan documents to typed data and back.

Fields, stages and accounting are those of the published training graphs; captured graphs and offload add the optional
ones (``host_link``, ``role``, ``recomputable``, ``offloadable``, ``node``, ``module``, ``source``, energies).
"""

from __future__ import annotations

from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.documents import PLAN_SCHEMA, PROBLEM_SCHEMA, Document, read, write
from loadmaster.models.memory.graph_rules import check_graph
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem


def read_problem(document: Document) -> MemoryProblem:
    """A memory problem from its document.

    Raises:
        InputError: unknown fields or versions, sizes out of range, cyclic or dangling graphs; names the field.
    """
    problem = read(MemoryProblem, PROBLEM_SCHEMA, document)
    check_graph(problem.forward, problem.backward, problem.objective)
    return problem


def write_problem(problem: MemoryProblem) -> dict[str, Any]:
    """The document of a problem; reading it back gives an equal problem."""
    return write(PROBLEM_SCHEMA, problem)


def read_plan(document: Document) -> MemoryPlan:
    """A memory plan from its document. It is not checked here: see :mod:`loadmaster.models.memory.checker`.

    Raises:
        InputError: unknown fields or versions, values out of range; names the field.
    """
    plan = read(MemoryPlan, PLAN_SCHEMA, document)
    for field in ("objective", "schedule"):
        value = getattr(plan, field)
        if (value is None) != (plan.status == "infeasible"):
            remedy = "An infeasible plan has neither objective nor schedule, any other plan has both."
            raise InputError(field, value, f"does not go with status {plan.status}", remedy)
    schedule = plan.schedule
    if schedule is not None and len(schedule.gone_before) not in (0, len(schedule.offload)):
        raise InputError(
            "schedule.gone_before",
            list(schedule.gone_before),
            f"has {len(schedule.gone_before)} entries for the {len(schedule.offload)} of schedule.offload",
            "Give one for each, or leave the field out: all are there until the backward pass starts.",
        )
    return plan


def write_plan(plan: MemoryPlan) -> dict[str, Any]:
    """The document of a plan; reading it back gives an equal plan."""
    return write(PLAN_SCHEMA, plan)
