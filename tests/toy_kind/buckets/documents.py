"""JSON of the kind ``buckets``."""

from __future__ import annotations

from typing import Any

from buckets.problem import BucketsPlan, BucketsProblem
from loadmaster.errors import InputError
from loadmaster.models.documents import PLAN_SCHEMA, PROBLEM_SCHEMA, Document, read, write


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


def read_problem(document: Document) -> BucketsProblem:
    """A problem from its document."""
    problem = read(BucketsProblem, PROBLEM_SCHEMA, document)
    check_problem(problem)
    return problem


def write_problem(problem: BucketsProblem) -> dict[str, Any]:
    """The document of a problem."""
    return write(PROBLEM_SCHEMA, problem)


def read_plan(document: Document) -> BucketsPlan:
    """A plan from its document; the checker says whether it holds."""
    return read(BucketsPlan, PLAN_SCHEMA, document)


def write_plan(plan: BucketsPlan) -> dict[str, Any]:
    """The document of a plan."""
    return write(PLAN_SCHEMA, plan)
