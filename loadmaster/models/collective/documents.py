"""JSON of the kind ``collective``: problem and plan documents to typed data and back.

A problem holds its whole topology, so that a document means the same whatever presets say later.
"""

from __future__ import annotations

from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.problem_rules import check_problem
from loadmaster.models.documents import PLAN_SCHEMA, PROBLEM_SCHEMA, Document, read, write


def read_problem(document: Document) -> CollectiveProblem:
    """A collective problem from its document.

    Raises:
        InputError: unknown fields or versions, values out of range, fields that do not fit each other; names the field.
    """
    problem = read(CollectiveProblem, PROBLEM_SCHEMA, document)
    check_problem(problem)
    return problem


def write_problem(problem: CollectiveProblem) -> dict[str, Any]:
    """The document of a problem; reading it back gives an equal problem."""
    return write(PROBLEM_SCHEMA, problem)


def read_plan(document: Document) -> CollectivePlan:
    """A collective plan from its document. It is not checked here: see :mod:`loadmaster.models.collective.checker`.

    Raises:
        InputError: unknown fields or versions, values out of range; names the field.
    """
    plan = read(CollectivePlan, PLAN_SCHEMA, document)
    if (plan.status == "infeasible") == bool(plan.algorithms):
        problem = f"does not go with {len(plan.algorithms)} algorithms"
        remedy = "An infeasible plan has no algorithms, any other plan has some."
        raise InputError("status", plan.status, problem, remedy)
    return plan


def write_plan(plan: CollectivePlan) -> dict[str, Any]:
    """The document of a plan; reading it back gives an equal plan."""
    return write(PLAN_SCHEMA, plan)
