"""Compiles a layer for a graph: a program, its backward pass, a schedule, and the module that runs both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.capture import expect_graph, expect_traced
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.module import CompiledLayer, Launch
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.greedy import greedy_schedule
from loadmaster.models.graph.library import layer as library_layer
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule
from loadmaster.models.graph.schedule_rules import expect_schedule
from loadmaster.models.graph.value import GIVEN, Value

_ELEMENT_BYTES = (4, 2)  # that problems may plan with


def compile(
    layer: Program | str,
    graph: Graph,
    plan: GraphPlan | None = None,
    *,
    width: int | None = None,
    out: int | None = None,
    heads: int = 1,
    training: bool = True,
    launch: Launch = "auto",
) -> CompiledLayer:
    """A module that runs a layer on a graph.

        layer = traced(rgat, nodes={"h": 64}, weights={"W": per_relation(64, 64), ...})
        module = compile(layer, graph).to("cuda")
        out = module(h)

    Args:
        layer: what :func:`~loadmaster.models.graph.tracing.traced` made of a function, or the name of a layer of the
            library (``"rgcn"``, ``"rgat"``, ``"hgt"``, ``"gat"``, ``"simple-hgn"``).
        plan: for this layer on this graph; None: the greedy schedule of the layer as it is written.
        width, out, heads: of a layer of the library: numbers in the vectors that go in and come out, all heads
            together.
        training: whether the module has a backward pass; without one its parameters need no gradients.
        launch: see :class:`~loadmaster.executor.graph.compiled.module.CompiledLayer`.

    Raises:
        InputError: the layer is unknown, not a program, or lacks its width; the graph or the plan is of another type;
            the plan is for another layer or graph.
    """
    expect_graph(graph)
    if isinstance(layer, str):
        if width is None or out is None:
            raise InputError("width", width, f"or out is missing: {layer} needs both", "Give width= and out=.")
        layer = library_layer(layer, width, out, heads)
    expect_traced(layer)
    if plan is None:
        program = with_backward(layer) if training else layer
        return CompiledLayer(program, greedy_schedule(program), graph, launch)
    program, schedule = _planned(plan, layer, training)
    _expect_graph(plan, program, schedule, graph)
    return CompiledLayer(program, schedule, graph, launch)


def _planned(plan: GraphPlan, layer: Program, training: bool) -> tuple[Program, Schedule]:
    if not isinstance(plan, GraphPlan):
        raise InputError("plan", type(plan).__name__, "is no plan of a graph layer", "Plan what capture(...) gives.")
    if plan.program is None or plan.schedule is None:
        raise InputError("plan", plan.status, "has no schedule", "Plan with a larger budget.")
    if bool(plan.program.gradients) != training:
        planned = "training" if plan.program.gradients else "inference"
        raise InputError("plan", planned, f"is not what training={training} asks for", "Plan for that, or change it.")
    forward = _unnamed(plan.program.values[: plan.program.forward_count])
    if all(_unnamed(order.program.values) != forward for order in orders(layer)):
        remedy = "Plan a problem of this very layer."
        raise InputError("plan", plan.problem_sha256, "is for another layer: this one has no such order", remedy)
    expect_schedule(plan.program, plan.schedule)
    return plan.program, plan.schedule


def _unnamed(values: Sequence[Value]) -> list[Value]:
    """Return values without their names, except for the names of what is given."""
    return [value if value.op in GIVEN else replace(value, name="") for value in values]


def _expect_graph(plan: GraphPlan, program: Program, schedule: Schedule, graph: Graph) -> None:
    """Refuse a plan of which a kernel would store another number of rows here."""
    indices = Indices.of(graph)
    numbers = [
        sum(indices.rows(program.types[n].space) * program.types[n].numbers for n in kernel.stores)
        for kernel in schedule.kernels
    ]
    planned = [kernel.stored_bytes for kernel in plan.kernels]
    if all([count * size for count in numbers] != planned for size in _ELEMENT_BYTES):
        found = f"kernels store {sum(numbers)} numbers here, {sum(planned)} bytes as planned"
        remedy = "Plan with the statistics of this graph."
        raise InputError("plan", found, "is for another graph", remedy)
