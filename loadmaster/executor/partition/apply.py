"""Application of a partition plan: a model becomes a training step on this rank's shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from loadmaster.errors import InputError
from loadmaster.executor.partition.graph_step import Backend, PartitionedStep
from loadmaster.executor.partition.module_step import ModuleStep
from loadmaster.executor.partition.traced import traced_step
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.stand_ins import standing_in_for_values
from loadmaster.executor.steps.step import Loss
from loadmaster.models.kinds import check_plan
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import Axis, PartitionProblem

Executor = Literal["graph", "module"]


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
            shares; a model without values (``torch.device("meta")``) gets them by ``step.load_state_dict``.
            ``module`` wraps it in place.
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
        raise InputError(
            "problem.name",
            problem.name,
            f"was captured from another step: this one, on {device.type}, is {traced.fingerprint}",
            f"Capture this model on {device.type} with this batch, loss, precision and mode, and plan again.",
        )
    if mesh is None:
        expect_ranks([axis.size for axis in problem.axes])
        mesh = init_device_mesh(device_type(), tuple(axis.size for axis in problem.axes))
    if executor == "module":
        return ModuleStep(model, loss, traced, problem, plan, mesh, given)
    return PartitionedStep(model, loss, traced, problem, plan, mesh, backend)


def expect_equal_shares(executor: Executor, axes: Sequence[Axis]) -> None:
    """Refuse unequal shares for modules: ``fully_shard`` and ``DTensor`` cannot split so.

    Raises:
        InputError: the executor is ``module``, and an axis has weights.
    """
    for n, axis in enumerate(axes):
        if executor == "module" and not axis.is_even:
            remedy = "Use executor='graph', which runs unequal shares."
            raise InputError(f"axes[{n}].weights", axis.weights, "are not equal, and modules have equal shares", remedy)


def device_type() -> str:
    """Device type of the default process group, which a model without values is traced for."""
    return "cuda" if dist.is_initialized() and "nccl" in dist.get_backend() else "cpu"


def expect_ranks(sizes: Sequence[int]) -> None:
    """Refuse a mesh whose size is not the number of ranks of the process group.

    Raises:
        InputError: naming both numbers.
    """
    shown = "x".join(map(str, sizes))
    if not dist.is_initialized():
        remedy = "Call torch.distributed.init_process_group() in a script that torchrun starts."
        raise InputError("mesh", shown, "has no process group", remedy)
    ranks = dist.get_world_size()
    if math.prod(sizes) != ranks:
        remedy = f"Start {math.prod(sizes)} of them, or give a mesh of {ranks}."
        raise InputError("mesh", shown, f"is not of the {ranks} ranks that there are", remedy)
