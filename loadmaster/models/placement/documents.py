"""JSON of the kind ``placement``: problem and plan documents to typed data and back."""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem


def check_problem(problem: PlacementProblem) -> None:
    """Refuse operators that use a block that is not listed, and two tiers of one name, naming the field."""
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


def _check_plan(plan: PlacementPlan) -> None:
    expect_with_status(plan, "objective", "moves")


DOCUMENTS = KindDocuments(PlacementProblem, PlacementPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
