"""JSON of the kind ``buckets``."""

from __future__ import annotations

from buckets.problem import BucketsPlan, BucketsProblem
from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments


def check_problem(problem: BucketsProblem) -> None:
    """Refuse what the fields cannot say one by one.

    Raises:
        InputError: a gradient that is there before the one that it follows.
    """
    for n in range(1, len(problem.gradients)):
        ready_us = problem.gradients[n].ready_us
        if ready_us < problem.gradients[n - 1].ready_us:
            remedy = "List gradients in the order in which the backward pass makes them."
            raise InputError(f"gradients[{n}].ready_us", ready_us, "is before its predecessor's", remedy)


DOCUMENTS = KindDocuments(BucketsProblem, BucketsPlan, check_problem)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
