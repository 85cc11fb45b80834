"""The kinds of problem, by name: what the service, the command line and the planner need to know of each.

A new kind is one more entry here and the same word on every floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.documents import Document, load_document
from loadmaster.models.memory import checker as memory_checker
from loadmaster.models.memory import documents as memory_documents
from loadmaster.models.memory.checker import Check
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem

# Of every kind there is; more kinds widen these unions.
Problem = MemoryProblem
Plan = MemoryPlan


@dataclass(frozen=True)
class Kind:
    """The functions of one kind."""

    name: str
    question: str
    read_problem: Callable[[Document], Problem]
    write_problem: Callable[[Problem], dict[str, Any]]
    read_plan: Callable[[Document], Plan]
    write_plan: Callable[[Plan], dict[str, Any]]
    check: Callable[[Problem, Plan], Check]


KINDS: dict[str, Kind] = {
    "memory": Kind(
        name="memory",
        question="under a byte budget, keep, recompute or offload each activation; which implementation, when?",
        read_problem=memory_documents.read_problem,
        write_problem=memory_documents.write_problem,
        read_plan=memory_documents.read_plan,
        write_plan=memory_documents.write_plan,
        check=memory_checker.check_plan,
    )
}


def kind_of(document: Document) -> Kind:
    """The kind a document names.

    Raises:
        InputError: no or an unknown ``kind``.
    """
    name = document.get("kind")
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    raise InputError("kind", name, "is no kind of problem", f"Known kinds: {', '.join(KINDS)}.")


def read_problem(source: Document | str | Path | Problem) -> Problem:
    """A typed problem from a document, a path, or a problem (returned as it is).

    Raises:
        InputError: naming the field that is wrong.
    """
    if isinstance(source, Problem):
        return source
    document = load_document(source)
    return kind_of(document).read_problem(document)


def write_problem(problem: Problem) -> dict[str, Any]:
    """The document of a typed problem."""
    return KINDS[problem.kind].write_problem(problem)


def read_plan(source: Document | str | Path | Plan) -> Plan:
    """A typed plan from a document, a path, or a plan (returned as it is).

    Raises:
        InputError: naming the field that is wrong.
    """
    if isinstance(source, Plan):
        return source
    document = load_document(source)
    return kind_of(document).read_plan(document)


def write_plan(plan: Plan) -> dict[str, Any]:
    """The document of a typed plan."""
    return KINDS[plan.kind].write_plan(plan)


def check_plan(problem: Problem, plan: Plan) -> Check:
    """Replay a plan against its problem, independently of how it was found.

    Raises:
        InputError: the plan belongs to another problem, or holds no schedule.
    """
    return KINDS[problem.kind].check(problem, plan)
