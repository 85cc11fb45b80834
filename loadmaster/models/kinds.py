"""The kinds of problem, by name: what the service, the command line and the planner need to know of each.

A new kind is one more entry here and the same word on every floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.collective import checker as collective_checker
from loadmaster.models.collective import documents as collective_documents
from loadmaster.models.collective.plan import CollectivePlan
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.models.collective.problem_rules import check_problem
from loadmaster.models.documents import Document, load_document
from loadmaster.models.memory import checker as memory_checker
from loadmaster.models.memory import documents as memory_documents
from loadmaster.models.memory.graph_rules import check_graph
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem

# Of every kind there is; more kinds widen these unions.
Problem = MemoryProblem | CollectiveProblem
Plan = MemoryPlan | CollectivePlan

ProblemT = TypeVar("ProblemT", bound=Problem)
PlanT = TypeVar("PlanT", bound=Plan)


class Verdict(Protocol):
    """What every kind's checker says: whether the plan holds, why not, and the objective of its own replay."""

    @property
    def ok(self) -> bool: ...

    @property
    def violations(self) -> tuple[str, ...]: ...

    @property
    def objective(self) -> float: ...

    def summary(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class Kind(Generic[ProblemT, PlanT]):
    """The functions of one kind.

    Attributes:
        expect: refuses (InputError) a typed problem that means nothing; problems read from documents have passed it.
        sizes: how large a problem is, for a person who waits for its plan.
        budget_bytes: the budget that a problem brings, if it does; None for kinds that are not planned under one.
    """

    name: str
    question: str
    read_problem: Callable[[Document], ProblemT]
    write_problem: Callable[[ProblemT], dict[str, Any]]
    expect: Callable[[ProblemT], None]
    read_plan: Callable[[Document], PlanT]
    write_plan: Callable[[PlanT], dict[str, Any]]
    check: Callable[[ProblemT, PlanT], Verdict]
    sizes: Callable[[ProblemT], dict[str, int]]
    budget_bytes: Callable[[ProblemT], int | None] | None = None


KINDS: dict[str, Kind[Any, Any]] = {
    "memory": Kind(
        name="memory",
        question="under a byte budget, keep, recompute or offload each activation; which implementation, when?",
        read_problem=memory_documents.read_problem,
        write_problem=memory_documents.write_problem,
        expect=lambda problem: check_graph(problem.forward, problem.backward, problem.objective),
        read_plan=memory_documents.read_plan,
        write_plan=memory_documents.write_plan,
        check=memory_checker.check_plan,
        sizes=lambda problem: {"forward": len(problem.forward), "backward": len(problem.backward)},
        budget_bytes=lambda problem: problem.budget_bytes,
    ),
    "collective": Kind(
        name="collective",
        question="over which links, in which order, does each chunk of a collective travel?",
        read_problem=collective_documents.read_problem,
        write_problem=collective_documents.write_problem,
        expect=check_problem,
        read_plan=collective_documents.read_plan,
        write_plan=collective_documents.write_plan,
        check=collective_checker.check_plan,
        sizes=lambda problem: {
            "ranks": problem.topology.rank_count,
            "links": len(problem.topology.links),
            "sizes": len(problem.sizes_bytes),
        },
    ),
}


def kind_of(document: Document) -> Kind[Any, Any]:
    """The kind a document names.

    Raises:
        InputError: no or an unknown ``kind``.
    """
    name = document.get("kind")
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    raise InputError("kind", name, "is no kind of problem", f"Known kinds: {', '.join(KINDS)}.")


def expect_budgets(kind: object) -> None:
    """Refuse a sweep of budgets for a kind without any; what is no kind is left to whoever reads the document.

    Raises:
        InputError: naming the problem's kind.
    """
    if isinstance(kind, str) and kind in KINDS and KINDS[kind].budget_bytes is None:
        raise InputError("problem.kind", kind, "has no budget to sweep", "Plan it: one plan is all there is.")


def read_problem(source: Document | str | Path | Problem) -> Problem:
    """A typed problem from a document, a path, or a problem (returned as it is).

    Raises:
        InputError: naming the field that is wrong.
    """
    if isinstance(source, Problem):
        return source
    document = load_document(source)
    problem: Problem = kind_of(document).read_problem(document)
    return problem


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
    plan: Plan = kind_of(document).read_plan(document)
    return plan


def write_plan(plan: Plan) -> dict[str, Any]:
    """The document of a typed plan."""
    return KINDS[plan.kind].write_plan(plan)


def check_plan(problem: Problem, plan: Plan) -> Verdict:
    """Replay a plan against its problem, independently of how it was found.

    Raises:
        InputError: the plan belongs to another problem, or holds no schedule.
    """
    return KINDS[problem.kind].check(problem, plan)
