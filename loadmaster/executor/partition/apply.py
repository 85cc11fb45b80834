"""Application of a partition plan: a model becomes a training step on this rank's shares.

:func:`split` captures, plans and applies in one call: the first rank plans, and tells the others.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.partition.capture import OVERLAP, capture
from loadmaster.executor.partition.graph_step import Backend, PartitionedStep
from loadmaster.executor.partition.module_step import ModuleStep
from loadmaster.executor.partition.traced import traced_step
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.stand_ins import standing_in_for_values
from loadmaster.executor.steps.step import Loss
from loadmaster.models.envelope import Plan
from loadmaster.models.kinds import check_plan
from loadmaster.models.partition.documents import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.partition.meshes import mesh as mesh_of
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import Axis, PartitionProblem
from loadmaster.models.topologies.topology import Topology
from loadmaster.models.units import bytes_of, show_at_least

Executor = Literal["graph", "module"]
logger = logging.getLogger(__name__)
Planner = Callable[..., Plan]
MakesOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def apply(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    problem: PartitionProblem,
    plan: PartitionPlan,
    mesh: DeviceMesh | None = None,
    backend: Backend | None = None,
    executor: Executor = "graph",
) -> PartitionedStep | ModuleStep:
    """Make a training step under a plan. Call it on every rank of the mesh, with equal arguments.

    Args:
        model: with equal values on every rank, as it was captured. ``graph`` reads it once: the step trains its own
            shares; a model without values (``torch.device("meta")``) gets them by ``step.load_state_dict``. ``module``
            wraps it in place.
        batch, loss: as captured. ``graph`` reads shapes only, ``module`` also checks itself with the batch.
        mesh: None: of the default process group's ranks, on the model's device.
        backend: of ``graph``: ``eager`` runs operator by operator, ``inductor`` compiles both passes, collectives
            included, and draws no random numbers. None: ``inductor`` on GPUs wherever it can.
        executor: ``graph`` runs any plan. ``module`` runs the model's own code, with ``fully_shard`` and ``DTensor``,
            under plans of the method ``module``.

    Raises:
        InputError: the plan is of another problem or method, the problem of another model, the mesh of another size or,
            for ``module``, of unequal shares, the backend cannot run the step, or the wrapped model does not compute
            what one device does.
    """
    if executor not in get_args(Executor):
        raise InputError("executor", executor, "is unknown", f"Choose one of: {', '.join(get_args(Executor))}.")
    expect_equal_shares(executor, problem.axes)
    verdict = check_plan(problem, plan)
    if plan.splits is None or not verdict.ok:
        wrong = "holds no splits" if verdict.ok else f"does not hold: {verdict.violations[0]}"
        raise InputError("plan", plan.name, wrong, "Plan again.")
    given = batch_of(batch)
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    with standing_in_for_values(modules, given, device_type() if mesh is None else mesh.device_type) as present:
        traced = traced_step(model, present, loss)
        device = device_of(model, present)
    if problem.name.rpartition("-")[2] != traced.fingerprint:
        wrong = f"was captured from another step: this one, on {device.type}, is {traced.fingerprint}"
        remedy = f"Capture this model on {device.type} with this batch, loss, precision and mode, and plan again."
        raise InputError("problem.name", problem.name, wrong, remedy)
    if mesh is None:
        expect_ranks([axis.size for axis in problem.axes])
        mesh = init_device_mesh(device_type(), tuple(axis.size for axis in problem.axes))
    if executor == "module":
        return ModuleStep(model, loss, traced, problem, plan, mesh, given)
    return PartitionedStep(model, loss, traced, problem, plan, mesh, backend)


def expect_equal_shares(executor: Executor, axes: Sequence[Axis]) -> None:
    """Refuse unequal shares for modules, by an InputError: ``fully_shard`` and ``DTensor`` cannot split so."""
    for n, axis in enumerate(axes):
        if executor == "module" and not axis.is_even:
            remedy = "Use executor='graph', which runs unequal shares."
            raise InputError(f"axes[{n}].weights", axis.weights, "are not equal, and modules have equal shares", remedy)


def device_type() -> str:
    """Device type of the default process group, which a model without values is traced for."""
    return "cuda" if dist.is_initialized() and "nccl" in dist.get_backend() else "cpu"


def expect_ranks(sizes: Sequence[int]) -> None:
    """Refuse, by an InputError, a mesh whose size is not the number of ranks of the process group."""
    shown = "x".join(map(str, sizes))
    if not dist.is_initialized():
        remedy = "Call torch.distributed.init_process_group() in a script that torchrun starts."
        raise InputError("mesh", shown, "has no process group", remedy)
    ranks = dist.get_world_size()
    if math.prod(sizes) != ranks:
        remedy = f"Start {math.prod(sizes)} of them, or give a mesh of {ranks}."
        raise InputError("mesh", shown, f"is not of the {ranks} ranks that there are", remedy)


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
        model, batch, loss, overlap: of the whole step, as for :func:`loadmaster.executor.capture_partition`.
        mesh: ranks along each axis, the slowest links first: ``"2x4"``.
        planner: plans a problem, for example ``loadmaster.plan``; called on the first rank, for the executor ``module``
            with ``method="module"``.
        budget_bytes: memory of one GPU, for what the step itself holds: bytes, or a size (``"40GiB"``).
        optimizer: makes the optimizer of some parameters, such as ``torch.optim.AdamW``: its state counts.
        gbps, latency_us, topology, speeds, weights, memory: of the axes, as for
            :func:`loadmaster.models.partition.meshes.mesh`.
        hardware: the entry of the catalogue whose times are estimated; None: operators are measured.
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
