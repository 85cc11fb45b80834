"""Split of a model under ``torchrun`` in one call: capture, plan, apply. The first rank plans, and tells the others."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.partition.apply import Executor, apply, device_type, expect_equal_shares, expect_ranks
from loadmaster.executor.partition.capture import OVERLAP, capture
from loadmaster.executor.partition.graph_step import Backend, PartitionedStep
from loadmaster.executor.partition.module_step import ModuleStep
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.step import Loss
from loadmaster.models.envelope import Plan
from loadmaster.models.partition.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.partition.meshes import mesh as mesh_of
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem
from loadmaster.models.topologies.topology import Topology
from loadmaster.models.units import bytes_of, show_at_least

logger = logging.getLogger(__name__)

Planner = Callable[..., Plan]
MakesOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def split(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    mesh: str,
    planner: Planner,
    budget_bytes: int | str,
    optimizer: MakesOptimizer | None = None,
    gbps: str | None = None,
    latency_us: str | None = None,
    topology: str | Topology | None = None,
    speeds: str | None = None,
    weights: str | None = None,
    memory: str | None = None,
    hardware: str | None = "h200",
    overlap: float = OVERLAP,
    backend: Backend | None = None,
    executor: Executor = "graph",
) -> PartitionedStep | ModuleStep:
    """Split a training step over the ranks of a mesh as planned. Call it on every rank.

    Args:
        model, batch, loss: of the whole step, as for :func:`loadmaster.executor.capture_partition`.
        mesh: ranks along each axis, the slowest links first: ``"2x4"``.
        planner: plans a problem, for example ``loadmaster.plan``; called on the first rank, for the executor
            ``module`` with ``method="module"``.
        budget_bytes: memory of one GPU, for what the step itself holds: bytes, or a size (``"40GiB"``).
        optimizer: makes the optimizer of some parameters, such as ``torch.optim.AdamW``: its state counts.
        gbps, latency_us, topology, speeds, weights, memory: of the axes, as for
            :func:`loadmaster.models.partition.meshes.mesh`.
        hardware: the entry of the catalogue whose times are estimated; None: operators are measured.
        overlap: as for :func:`loadmaster.executor.capture_partition`.
        backend, executor: as for :func:`loadmaster.executor.apply_partition`.

    Raises:
        InputError: the step cannot be captured, the mesh is not that of the ranks, or there is no plan.
        LoadmasterError: the planner's.
    """
    axes = mesh_of(
        mesh, gbps=gbps, latency_us=latency_us, topology=topology, speeds=speeds, weights=weights, memory=memory
    )
    expect_ranks([axis.size for axis in axes])
    expect_equal_shares(executor, axes)
    budget = bytes_of(budget_bytes, "budget_bytes")

    def planned() -> tuple[PartitionProblem, PartitionPlan]:
        optimizer_of_whole = None if optimizer is None else optimizer(model.parameters())
        problem = capture(
            model,
            batch,
            loss,
            axes=axes,
            optimizer=optimizer_of_whole,
            hardware=hardware,
            overlap=overlap,
            budget_bytes=budget,
            device=device_type(),
        )
        plan = planner(problem) if executor == "graph" else planner(problem, method="module")
        if not isinstance(plan, PartitionPlan):
            raise InputError("planner", type(plan).__name__, "is no partition plan", "Give loadmaster.plan.")
        if plan.splits is None:
            raise InputError("budget_bytes", budget_bytes, f"has no plan{_reason(plan)}", "Give more, or more GPUs.")
        if executor == "module" and plan.objective is not None and plan.bound:
            more = 100 * (plan.objective / plan.bound - 1)
            logger.info("split into modules, a step takes at most %.1f %% longer than under any plan", more)
        return problem, plan

    problem, plan = _from_first_rank(planned)
    problem = replace(problem, budget_bytes=budget)
    step = apply(model, batch, loss, problem=problem, plan=plan, backend=backend, executor=executor)
    # Tracers and optimizers refer to themselves: until they are collected, they hold every parameter whole.
    gc.collect()
    return step


def _reason(plan: PartitionPlan) -> str:
    lacking = plan.infeasibility
    if lacking is None:
        return ""
    least = show_at_least(lacking.minimum_budget_bytes)
    return f": every plan needs at least {least}, much of it for {', '.join(lacking.largest)}"


def _from_first_rank(
    planned: Callable[[], tuple[PartitionProblem, PartitionPlan]],
) -> tuple[PartitionProblem, PartitionPlan]:
    """Send the first rank's problem and plan, or its error, to every rank."""
    said: list[object] = [None]
    if dist.get_rank() == 0:
        try:
            problem, plan = planned()
            said = [(write_problem(problem), write_plan(plan))]
        except Exception as error:
            said = [f"{type(error).__name__}: {error}"]
            dist.broadcast_object_list(said)
            raise
    dist.broadcast_object_list(said)
    if isinstance(said[0], str):
        raise LoadmasterError(f"rank 0 has no plan: {said[0]}")
    documents: Any = said[0]
    return read_problem(documents[0]), read_plan(documents[1])
