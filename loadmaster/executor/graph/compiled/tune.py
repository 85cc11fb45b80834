"""Trying a plan against its closest rivals on the device: what runs is what was fastest there.

Plans are made from estimates. Schedules whose estimates are close together are told apart by running them, and so is
the schedule that would run without a plan: with one, nothing gets slower.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.graph.compiled.compiling import compile
from loadmaster.executor.graph.compiled.module import CompiledLayer, Launch
from loadmaster.executor.graph.structure.graph import Graph
from loadmaster.executor.steps.measure import queued_us
from loadmaster.models.graph.checker import check
from loadmaster.models.graph.greedy import greedy_kept, least_kept
from loadmaster.models.graph.lowering import lowered
from loadmaster.models.graph.orders import orders
from loadmaster.models.graph.plan import GraphPlan
from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule

logger = logging.getLogger(__name__)
RIVALS = 4
WARM, REPEATS = 4, 9


def tune(
    problem: GraphProblem, plan: GraphPlan, graph: Graph, *features: Tensor, launch: Launch = "auto"
) -> CompiledLayer:
    """The fastest module of the plan, the one without a plan, and the best schedules by rule, on these features.

    Args:
        problem: of the plan.
        graph: that the problem was captured of.
        features: as the module takes them; those that require gradients get them in every step that is timed.
        launch: as for :func:`~loadmaster.executor.graph.compiled.compiling.compile`.

    Raises:
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
    for at, order in enumerate(orders(problem.program)):
        program = problem.step(order.program)
        for rule in (greedy_kept, least_kept):
            schedule = lowered(program, rule(program))
            verdict = check(problem, order.choices, program, schedule, 0, budget_bytes)
            if verdict.ok:
                runs_anyway = at == 0 and rule is greedy_kept
                found.append((-1.0 if runs_anyway else verdict.kernels_us, program, schedule))
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
