"""JSON of the kind ``placement``: problem and plan documents to typed data and back."""

from __future__ import annotations

from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.documents import PLAN_SCHEMA, PROBLEM_SCHEMA, Document, read, write
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem


def check_problem(problem: PlacementProblem) -> None:
    """Refuse what the fields cannot say one by one.

    Raises:
        InputError: an operator uses a block that is not listed, or two tiers have one name; names the field.
    """
    count = len(problem.blocks)
    for i, operator in enumerate(problem.operators):
        for field in ("reads", "writes"):
            unknown = [b for b in getattr(operator, field) if b >= count]
            if unknown:
                remedy = f"Blocks are numbered 0 to {count - 1}, in the order of the field blocks."
                raise InputError(f"operators[{i}].{field}", unknown[0], "is no block", remedy)
    names = [tier.name for tier in problem.tiers]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise InputError(f"tiers[{n}].name", name, "is another tier's name too", "Give each tier its own.")


def read_problem(document: Document) -> PlacementProblem:
    """A placement problem from its document.

    Raises:
        InputError: unknown fields or versions, values out of range, unknown blocks; names the field.
    """
    problem = read(PlacementProblem, PROBLEM_SCHEMA, document)
    check_problem(problem)
    return problem


def write_problem(problem: PlacementProblem) -> dict[str, Any]:
    """The document of a problem; reading it back gives an equal problem."""
    return write(PROBLEM_SCHEMA, problem)


def read_plan(document: Document) -> PlacementPlan:
    """A placement plan from its document. It is not checked here: see :mod:`loadmaster.models.placement.checker`.

    Raises:
        InputError: unknown fields or versions, values out of range; names the field.
    """
    plan = read(PlacementPlan, PLAN_SCHEMA, document)
    for field in ("objective", "moves"):
        value = getattr(plan, field)
        if (value is None) != (plan.status == "infeasible"):
            remedy = "An infeasible plan has neither objective nor moves, any other plan has both."
            raise InputError(field, value, f"does not go with status {plan.status}", remedy)
    return plan


def write_plan(plan: PlacementPlan) -> dict[str, Any]:
    """The document of a plan; reading it back gives an equal plan."""
    return write(PLAN_SCHEMA, plan)
