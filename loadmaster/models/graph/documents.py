"""JSON of the kind ``graph``: problem and plan documents to typed data and back."""

from __future__ import annotations

from typing import get_args

from loadmaster.errors import InputError
from loadmaster.models.documents import KindDocuments, expect_with_status
from loadmaster.models.graph.device import GraphHardware
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import EVERY_TILE, Template
from loadmaster.models.graph.statistics import expect_statistics


def check_problem(problem: GraphProblem) -> None:
    """Refuse problems whose fields do not fit together: operators that cannot take their inputs, outputs that are not
    of nodes, a backward pass, statistics that no graph has, two values of one name. The error names the field."""
    program = problem.program
    expect_program(program)
    _expect_different_names(program)
    if program.forward_count != len(program.values) or program.gradients:
        remedy = "Give the forward pass; training says whether the other is planned."
        raise InputError("program.forward_count", program.forward_count, "leaves values to a backward pass", remedy)
    for at, n in enumerate(program.outputs):
        if program.types[n].space != "node":
            remedy = "Aggregate it to nodes, with as_node."
            raise InputError(
                f"program.outputs[{at}]", program.values[n].name, f"is of {program.types[n].space}", remedy
            )
    if not any(value.op == "aggregate" for value in program.values):
        raise InputError("program", problem.name, "aggregates nothing over edges", "Plan layers of graph networks.")
    expect_statistics(problem.statistics)
    _expect_tiles(problem.hardware)


def _expect_tiles(hardware: GraphHardware) -> None:
    for template in get_args(Template):
        for part in ("rows", "columns", "warps"):
            there: tuple[int, ...] = getattr(EVERY_TILE, part)
            for n in getattr(hardware.tiles.of(template), part):
                if n not in there:
                    remedy = f"Use some of {', '.join(map(str, there))}."
                    raise InputError(f"hardware.tiles.{template}.{part}", n, f"are {part} that no kernel has", remedy)


def _expect_different_names(program: Program) -> None:
    """Refuse two values of one name: layers take features and parameters by name, so one would be lost."""
    first: dict[str, int] = {}
    for n, value in enumerate(program.values):
        at = first.setdefault(value.name, n)
        if at != n:
            what = f"is the name of program.values[{at}] too"
            raise InputError(f"program.values[{n}].name", value.name, what, "Give each value a name of its own.")


def expect_program(program: Program) -> None:
    """Refuse programs with numbers that name no value, or operators that cannot take their inputs."""
    known = len(program.values)
    numbered = [("outputs", n) for n in program.outputs]
    numbered += [("gradients", n) for pair in program.gradients for n in pair]
    for field, n in numbered:
        if n >= known:
            raise InputError(f"program.{field}", n, "is no value", f"Values are numbered 0 to {known - 1}.")
    if program.forward_count > known:
        raise InputError("program.forward_count", program.forward_count, "is more than there are", f"Give {known}.")
    assert len(program.types) == known, "types refuses what is wrong"


def _check_plan(plan: GraphPlan) -> None:
    expect_with_status(plan, "objective", "program", "schedule")
    if plan.program is not None:
        expect_program(plan.program)


DOCUMENTS = KindDocuments(GraphProblem, GraphPlan, check_problem, _check_plan)
read_problem, write_problem = DOCUMENTS.read_problem, DOCUMENTS.write_problem
read_plan, write_plan = DOCUMENTS.read_plan, DOCUMENTS.write_plan
