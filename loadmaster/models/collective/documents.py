"""JSON of the kind ``collective``: problem and plan documents to typed data and back.

A problem holds its whole topology, so that a document means the same whatever presets say later.
"""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.problem_rules import check_problem
from loadmaster.models.documents import KindDocuments


def _check_plan(plan: CollectivePlan) -> None:
    if (plan.status == "infeasible") == bool(plan.algorithms):
        problem = f"does not go with {len(plan.algorithms)} algorithms"
        remedy = "An infeasible plan has no algorithms, any other plan has some."
        raise InputError("status", plan.status, problem, remedy)


DOCUMENTS = KindDocuments(CollectiveProblem, CollectivePlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
