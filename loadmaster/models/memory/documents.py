"""JSON of the kind ``memory``: problem and plan documents to typed data and back.

Fields, stages and accounting are those of the published training graphs; captured graphs and offload add the optional
ones (``host_link``, ``role``, ``recomputable``, ``offloadable``, ``node``, ``module``, ``source``, energies).
"""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.memory.graph_rules import check_problem
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem


def _check_plan(plan: MemoryPlan) -> None:
    expect_with_status(plan, "objective", "schedule")
    schedule = plan.schedule
    if schedule is not None and len(schedule.gone_before) not in (0, len(schedule.offload)):
        raise InputError(
            "schedule.gone_before",
            list(schedule.gone_before),
            f"has {len(schedule.gone_before)} entries for the {len(schedule.offload)} of schedule.offload",
            "Give one for each, or leave the field out: all are there until the backward pass starts.",
        )


DOCUMENTS = KindDocuments(MemoryProblem, MemoryPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
