"""Capturing a whole training step: its problem is measured on the device, in trial steps that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Literal, get_args

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import AnyBatch, Batch, batch_of
from loadmaster.executor.steps.guards import captured_with
from loadmaster.executor.steps.host_link import host_bytes
from loadmaster.executor.steps.optimizers import expect_own_update, own_optimizer
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.wrappers import ddp_of
from loadmaster.executor.torch_private.operators import pytree
from loadmaster.executor.training.disk_rates import measured_disk
from loadmaster.executor.training.layers import ModelLayers, copy_format, layers_of
from loadmaster.executor.training.meter import CudaMeter
from loadmaster.executor.training.state_files import expect_folder
from loadmaster.executor.training.step import TrainingStep, expect_unplanned
from loadmaster.executor.training.trial import measured_problem
from loadmaster.models.training.plan import Schedule
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.units import bytes_of, show_bytes

MEASURED_ON = "cuda"
"""Type of the devices whose steps can be measured."""

Backend = Literal["inductor", "eager"]


@dataclass(frozen=True, eq=False)
class CapturedTraining:
    """A step that was measured, and all that makes one of it that runs.

    Attributes:
        problem: without a budget.
        max_norm, max_value: to which gradients are clipped; None: not at all.
        disk: folder for optimizer state in files; None: there is none.
    """

    model: nn.Module
    loss: Loss | None
    layers: ModelLayers
    optimizer: torch.optim.Optimizer
    device: torch.device
    autocast: torch.dtype | None
    max_norm: float | None
    max_value: float | None
    compiled: bool
    problem: TrainingProblem
    disk: str | PathLike[str] | None = None

    def step(
        self, problem: TrainingProblem, schedule: Schedule, on_position: Callable[[int, bool], None]
    ) -> TrainingStep:
        """Make the step under a schedule; it takes over the optimizer's state, and moves the model's values."""
        return TrainingStep(
            self.model,
            self.loss,
            self.layers,
            problem,
            schedule,
            self.optimizer,
            self.device,
            copy_dtype=copy_format(self.autocast, problem.micro_batches),
            max_norm=self.max_norm,
            max_value=self.max_value,
            compiled=self.compiled,
            disk=self.disk,
            on_position=on_position,
        )


def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str = "cuda",
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    blocks: Sequence[nn.Module] | None = None,
    backend: Backend = "inductor",
    host_memory_bytes: int | str | None = None,
    disk: str | PathLike[str] | None = None,
    name: str | None = None,
    progress: bool | None = None,
) -> TrainingProblem:
    """The training problem of a model's whole step, measured on a CUDA device, without a budget.

    Trial steps leave parameters, buffers and random state as they were. Call it under the same ``torch.autocast`` as
    the step.

    Args:
        model: on the CPU or on the device.
        batch, loss: as for :func:`~loadmaster.executor.fitting.fit`.
        optimizer: of all parameters that require a gradient; any that updates each parameter by itself.
        device: to train on.
        clip_grad_norm: the global norm to which gradients are clipped before the updates.
        accumulate: micro-batches whose gradients add up before the updates.
        blocks: modules that run one after the other; None: the model's largest list of modules.
        backend: ``inductor`` compiles the blocks, ``eager`` runs them as they are.
        host_memory_bytes: of the host, for plans; None: half of all that it has.
        disk: folder on a local disk, which may hold optimizer state; its rates and its room are measured. None: none.
        name: of the problem; None: the model's class.
        progress: whether to say what goes on, in a line on standard error. None: in a terminal or a notebook.

    Raises:
        InputError: an argument is wrong, or there is no such device.
    """
    if backend not in get_args(Backend):
        raise InputError("backend", backend, "is no backend", f"Choose one of: {', '.join(get_args(Backend))}.")
    with live_line.line(progress) as line:
        found = capture_step(
            model,
            batch,
            loss,
            optimizer=optimizer,
            device=device,
            clip_grad_norm=clip_grad_norm,
            accumulate=accumulate,
            blocks=blocks,
            compiled=backend == "inductor",
            host_memory_bytes=host_memory_bytes,
            disk=disk,
            name=name,
            say=partial(line.show, begins=True),
        )
    return found.problem


def capture_step(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None,
    *,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    clip_grad_norm: float | None,
    clip_grad_value: float | None = None,
    accumulate: int,
    blocks: Sequence[nn.Module] | None,
    compiled: bool,
    name: str | None,
    budget_bytes: int | None = None,
    host_memory_bytes: int | str | None = None,
    disk: str | PathLike[str] | None = None,
    say: Callable[[str], None],
) -> CapturedTraining:
    """Measure a step, as :func:`capture` does, in trials that take no more than a budget where they can; ``say`` is
    called with what goes on."""
    room_bytes = expect_host(host_memory_bytes, disk)
    given = batch_of(batch)
    expect_unplanned(model)
    optimizer = own_optimizer(optimizer)
    layers = expect_layers(model, optimizer, blocks)
    expect_recipe(clip_grad_norm, clip_grad_value, accumulate)
    device = measured_on(device)
    checked = Step(model, loss)
    on_device = moved(checked.batch(given), device)
    checked.expect_call(on_device)
    autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    problem, layers = measured_problem(
        name or type(model).__name__,
        model,
        on_device,
        loss,
        layers,
        optimizer,
        CudaMeter(device),
        autocast=autocast,
        accumulate=accumulate,
        clips=clip_grad_norm is not None,
        compiled=compiled,
        budget_bytes=budget_bytes,
        say=say,
    )
    problem = replace(problem, captured_with=captured_with())
    if room_bytes is not None:
        problem = replace(problem, host=replace(problem.host, capacity_bytes=room_bytes))
    if disk is not None:
        say("measuring the disk")
        problem = replace(problem, disk=measured_disk(disk))
    clips = clip_grad_norm, clip_grad_value
    return CapturedTraining(model, loss, layers, optimizer, device, autocast, *clips, compiled, problem, disk)


def can_measure(device: torch.device) -> bool:
    """Return whether whole steps are planned for such a device."""
    return device.type == MEASURED_ON


def expect_layers(
    model: nn.Module, optimizer: torch.optim.Optimizer, blocks: Sequence[nn.Module] | None
) -> ModelLayers:
    """Find the layers and groups of a whole step. InputError: the model or its optimizer is none that can be planned
    whole."""
    if ddp_of(model) is not None:
        raise InputError("model", type(model).__name__, "spans several processes", "Give the module that it wraps.")
    expect_own_update(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        remedy = "Use one that updates each by itself."
        raise InputError("optimizer", "LBFGS", "updates all parameters together", remedy)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and next(module.parameters(recurse=False), None) is not None:
            remedy = "Make it with sparse=False."
            raise InputError("model", name, "has sparse gradients, which the plan cannot move", remedy)
    return layers_of(model, optimizer, blocks)


def expect_host(memory_bytes: int | str | None, disk: str | PathLike[str] | None) -> int | None:
    """Return the bytes of host memory that are allowed. InputError: that is no size or more than there is, or the disk
    is no folder."""
    if disk is not None:
        expect_folder(disk)
    if memory_bytes is None:
        return None
    size, present = bytes_of(memory_bytes, "host_memory_bytes"), host_bytes()
    if size > present:
        problem = f"is more than the host has: {show_bytes(present)}"
        raise InputError("host_memory_bytes", memory_bytes, problem, "Give less, or None for half of it.")
    return size


def expect_recipe(clip_grad_norm: float | None, clip_grad_value: float | None, accumulate: int) -> None:
    """Refuse, by an InputError, limits of gradients that are not positive, both at once, or a number of micro-batches
    below one."""
    for field, limit in (("clip_grad_norm", clip_grad_norm), ("clip_grad_value", clip_grad_value)):
        if limit is not None and not limit > 0:
            raise InputError(field, limit, "must be positive", "Give a number such as 1.0, or None.")
    if clip_grad_norm is not None and clip_grad_value is not None:
        raise InputError("clip_grad_value", clip_grad_value, "is given with clip_grad_norm", "Give one of both.")
    if accumulate < 1:
        raise InputError("accumulate", accumulate, "must be at least 1", "Give the number of micro-batches.")


def measured_on(device: torch.device | str) -> torch.device:
    """Return the device with its number. InputError: no whole step can be measured there."""
    found = torch.device(device)
    if not can_measure(found) or (found.type == "cuda" and not torch.cuda.is_available()):
        remedy = "Run where PyTorch sees a CUDA device."
        raise InputError("device", str(found), "cannot be measured: a whole step is planned for a CUDA device", remedy)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on the device."""

    def one(value: object) -> object:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    args, kwargs = pytree.tree_map(one, (batch.args, dict(batch.kwargs)))
    return replace(batch, args=args, kwargs=kwargs)
