"""Compiles a layer for a graph: a program, its backward pass, a schedule, and the module that runs both.

Plans are made from estimates. Tuning runs a plan's closest rivals on the device, and the schedule that would run
without a plan: what is kept is what was fastest there, and with a plan nothing gets slower.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.capture import expect_graph, expect_traced
from loadmaster.executor.graph.compiled.indices import Indices
from loadmaster.executor.graph.compiled.module import CompiledLayer, Launch
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.steps.measure import queued_us
from loadmaster.models.graph.autodiff import with_backward
from loadmaster.models.graph.checker import check
from loadmaster.models.graph.library import layer as library_layer
from loadmaster.models.graph.limits import by_rule
from loadmaster.models.graph.lowering import greedy_schedule
from loadmaster.models.graph.operators import GIVEN, Value
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule
from loadmaster.models.graph.schedule_rules import expect_schedule

logger = logging.getLogger(__name__)
RIVALS = 4
WARM, REPEATS = 4, 9
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
        width, out, heads: of a layer of the library: numbers in the vectors that go in and come out, of all heads.
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


def tune(
    problem: GraphProblem, plan: GraphPlan, graph: Graph, *features: Tensor, launch: Launch = "auto"
) -> CompiledLayer:
    """The fastest module on these features: of the plan, without a plan, or of the best schedules by rule.

    ``problem`` is the plan's, captured of this graph. Features that require gradients get them in every timed step.
    InputError: the plan is for another layer or graph, or the features are missing or do not fit.
    """
    if not features or not all(isinstance(x, Tensor) for x in features):
        names = ", ".join(problem.program.given("feature"))
        raise InputError("features", [type(x).__name__ for x in features], "are no tensors", f"Give: {names}.")
    planned = compile(problem.program, graph, plan, training=problem.training, launch=launch)
    makers: list[Callable[[], CompiledLayer]] = [lambda: planned]
    makers += [
        partial(CompiledLayer, program, schedule, graph, launch)
        for program, schedule in _rivals(problem, plan.budget_bytes)
        if schedule != planned.schedule
    ]
    best, best_us, planned_us = planned, float("inf"), float("inf")
    for at, make in enumerate(makers):
        try:
            module = make().to(features[0].device, features[0].dtype)
            us = step_us(module, features)
        except torch.OutOfMemoryError:
            continue  # estimated to fit, and does not with what else is in memory
        planned_us = us if at == 0 else planned_us
        if us < best_us:
            best, best_us = module, us
    if best is not planned:
        logger.info("A schedule by rule takes %.0f us, the plan %.0f us: the former runs.", best_us, planned_us)
    return best


def _rivals(problem: GraphProblem, budget_bytes: int) -> list[tuple[Program, Schedule]]:
    """Schedules by rule that fit: the one that runs without a plan, and those with the shortest estimates."""
    found: list[tuple[float, Program, Schedule]] = []
    for at, (order, program, schedule) in enumerate(by_rule(problem)):
        verdict = check(problem, order.choices, program, schedule, 0, budget_bytes)
        if verdict.ok:
            # The first one runs without a plan.
            found.append((-1.0 if at == 0 else verdict.kernels_us, program, schedule))
    found.sort(key=lambda one: one[0])
    return [(program, schedule) for _, program, schedule in found[:RIVALS]]


def step_us(module: CompiledLayer, features: tuple[Tensor, ...]) -> float:
    """The median time of a call, and of its backward pass where there is one; gradients are put away."""
    wanted = [x for x in (*features, *module.parameters()) if x.requires_grad]

    def step() -> None:
        outputs = module(*features)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if wanted:
            torch.autograd.grad(outputs, wanted, [torch.ones_like(x) for x in outputs], allow_unused=True)

    for _ in range(WARM):
        step()
    device = features[0].device
    if device.type != "cuda":
        return statistics.median(_cpu_us(step) for _ in range(REPEATS))
    with torch.cuda.device(device):
        return statistics.median(queued_us(step, REPEATS))


def _cpu_us(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e6
