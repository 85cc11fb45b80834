"""A graph plan joined with its problem: where each value lives, which kernel makes it, what each takes."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.api.report.words import expect_held
from loadmaster.models.graph.checker import GraphCheck, check_plan, kernel_words
from loadmaster.models.graph.plan import GraphPlan, KernelCost
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.residence import value_bytes
from loadmaster.models.graph.schedule import Kernel, Schedule, is_free


@dataclass(frozen=True)
class ValueRow:
    """One value of the program: its ``text``, as ``linear(h, W)``; the ``space`` of its rows; ``where`` it is,
    ``given``, ``view``, ``inline`` or ``kept``; the number of the kernel that stores it; the bytes, if kept or given.
    """

    name: str
    text: str
    space: str
    shape: tuple[int, ...]
    where: str
    kernel: int | None
    size_bytes: int
    is_backward: bool


@dataclass(frozen=True)
class KernelRow:
    """One kernel, what it is and what it takes."""

    number: int
    words: str
    kernel: Kernel
    cost: KernelCost
    is_backward: bool


@dataclass(frozen=True)
class GraphView:
    """A plan and its check, ready to draw."""

    problem: GraphProblem
    plan: GraphPlan
    program: Program
    schedule: Schedule
    check: GraphCheck
    values: tuple[ValueRow, ...]
    kernels: tuple[KernelRow, ...]


def view(problem: GraphProblem, plan: GraphPlan) -> GraphView:
    """Check a plan and join it with its problem. Raises InputError if the plan is of another problem, has no schedule,
    or does not pass the checker."""
    verdict = check_plan(problem, plan)
    expect_held(plan, verdict)
    assert plan.program is not None and plan.schedule is not None
    kernels = tuple(
        KernelRow(n, kernel_words(plan.program, plan.schedule, n), kernel, cost, n >= plan.schedule.forward_count)
        for n, (kernel, cost) in enumerate(zip(plan.schedule.kernels, verdict.kernels, strict=True))
    )
    values = tuple(_values(problem, plan.program, plan.schedule))
    return GraphView(problem, plan, plan.program, plan.schedule, verdict, values, kernels)


def _values(problem: GraphProblem, program: Program, schedule: Schedule) -> list[ValueRow]:
    kept = schedule.kept
    found = []
    for n, (value, typed, line) in enumerate(zip(program.values, program.types, program.described(), strict=True)):
        free = is_free(program, n)
        where = "kept" if n in kept else "inline" if not free else "view" if value.inputs else "given"
        size = value_bytes(problem, program, n) if where in ("kept", "given") else 0
        text = line.partition(" = ")[2].partition("  #")[0]
        backward = n >= program.forward_count
        found.append(ValueRow(value.name, text, typed.space, typed.shape, where, kept.get(n), size, backward))
    return found
