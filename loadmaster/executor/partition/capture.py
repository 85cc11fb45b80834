"""Capture of a partition problem: a training step, forward, backward and optimizer, as operators that can be split.

The step is traced with fake tensors. Only trials of each sort of operator run, on small tensors. Repeated operators are
tied. Means, batch norms and a few others are written as operators that can be split (:mod:`.rewrites`).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.partition.traced import TracedStep, op_of, traced_step
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.resident import device_of, optimizer_states
from loadmaster.executor.steps.stand_ins import autocast_without_cuda, lacks_values, standing_in_for_values
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.torch_private.fake_tensors import unset_fake_temporarily
from loadmaster.models.partition.copies import with_copies
from loadmaster.models.partition.documents import check_problem
from loadmaster.models.partition.meshes import tell_of_inputs
from loadmaster.models.partition.problem import Axis, Operator, PartitionProblem, Signature, Tensor
from loadmaster.models.partition.repeats import tied
from loadmaster.models.partition.tdl.operators import update

logger = logging.getLogger(__name__)

# Hidden share of the time of collectives that a compiled step begins early or waits for late. They slow the kernels
# that run at the same time a little.
OVERLAP = 0.9


def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    axes: Sequence[Axis],
    optimizer: torch.optim.Optimizer | None = None,
    hardware: str | None = "h200",
    costs: CostModel | None = None,
    overlap: float = OVERLAP,
    budget_bytes: int | None = None,
    name: str | None = None,
    strict: bool = False,
    device: str = "cpu",
) -> PartitionProblem:
    """Capture the partition problem of a training step.

    Args:
        model, batch, loss: of the whole step on one device, as for :func:`loadmaster.executor.capture`. The model needs
            no values: ``torch.device("meta")`` and ``FakeTensorMode`` will do.
        axes: of the mesh: :func:`loadmaster.models.partition.meshes.mesh`.
        optimizer: of the model's parameters, one that updates each element by itself; its state counts.
        hardware: the entry of the catalogue whose times are estimated. None: they are measured on the model's device.
        costs: of operators, instead of the entry's.
        overlap: how much of a gathered parameter's or a summed gradient's time is hidden behind kernels, from 0 to
            below 1. Give 0 for a step that is not compiled, or for links so slow that kernels hide little.
        budget_bytes: memory of one GPU; None: to be given at planning time.
        name: of the problem; the graph's fingerprint is appended, which the executor holds a plan against.
        strict: refuse operators that would run whole on every GPU, because nothing is known of how to split them.
        device: the type of device that a model without values is traced for; it must be there.

    Raises:
        InputError: the step cannot be traced as one graph, returns no scalar loss, or has an operator that ``strict``
            refuses.
    """
    given = batch_of(batch)
    what = type(model).__name__
    if hardware is None and costs is None and lacks_values(model, given):
        remedy = 'Name the device to estimate costs for: hardware="h200".'
        raise InputError("model", what, "has no values to measure operators with", remedy)
    elsewhere = contextlib.nullcontext() if hardware is None else autocast_without_cuda()
    modules = [module for module in (model, loss) if isinstance(module, nn.Module)]
    states = {} if optimizer is None else _states(model, optimizer)
    with standing_in_for_values(modules, given, device) as present, elsewhere:
        own_device = device_of(model, present)
        traced = traced_step(model, present, loss)
    _tell(traced, strict=strict)
    tell_of_inputs([traced.graph.held[n].shape for n in traced.inputs.values()], axes)
    known = costs or (profiled(own_device) if hardware is None else roofline(hardware))
    with unset_fake_temporarily():
        times_us = [known.node_us(run.node) for run in traced.runs]
    problem = traced.problem(axes, times_us, f"{name or what}-{traced.fingerprint}", known.move_us(0))
    problem = _with_optimizer(problem, traced, states, known)
    problem = tied(with_copies(problem, traced.forward_operators))
    whose = "measured" if hardware is None else f"of {hardware}"
    problem = replace(problem, title=f"{what}, costs {whose}", overlap=overlap or None, budget_bytes=budget_bytes)
    check_problem(problem)
    return problem


def _states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[int]]:
    """Bytes per element of the optimizer's state tensors of a parameter's shape, by the parameter's name."""
    found = optimizer_states(optimizer)
    return {
        name: [t.element_size() for t in found.get(parameter, []) if t.shape == parameter.shape]
        for name, parameter in model.named_parameters()
    }


def _tell(traced: TracedStep, *, strict: bool) -> None:
    """Log which operators run whole on every worker; with ``strict``, raise InputError for them."""
    counts = Counter(op_of(run) for run in traced.runs)
    whole = [f"{op} ({counts[op]} times): {reason}" for op, reason in traced.replicated().items()]
    if whole and strict:
        remedy = "Leave --strict out to run them whole on every GPU, or replace them."
        raise InputError("model", "; ".join(whole), "cannot be split", remedy)
    for one in whole:
        logger.warning("%s; it runs whole on every GPU", one)


def _with_optimizer(
    problem: PartitionProblem, traced: TracedStep, states: dict[str, list[int]], costs: CostModel
) -> PartitionProblem:
    """Add an operator for each parameter with a gradient that updates it in place, together with its state."""
    tensors, operators, signatures = list(problem.tensors), list(problem.operators), list(problem.signatures)
    for name, parameter in traced.parameters.items():
        gradient = traced.graph.gradients.get(parameter)
        if gradient is None:
            continue
        of = tensors[parameter]
        held = [Tensor(f"{name}, state {n}", of.shape, size, "state") for n, size in enumerate(states.get(name, []))]
        inputs = (parameter, gradient, *range(len(tensors), len(tensors) + len(held)))
        tensors += held
        signature: Signature = update(len(inputs), len(of.shape))
        if signature not in signatures:
            signatures.append(signature)
        moved = 2 * sum(tensors[t].size_bytes for t in inputs)
        number, launch_us = signatures.index(signature), costs.move_us(0)
        operators.append(Operator("update", number, inputs, (), costs.move_us(moved), launch_us, module=name))
    return replace(problem, tensors=tuple(tensors), operators=tuple(operators), signatures=tuple(signatures))
