"""The plain training step that is traced: forward, backward and the optimizer, as in a user's loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.placement.recorder import Notes
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.step import Step
from loadmaster.executor.steps.step_graph import tensors


def passes(step: Step, batch: Batch, optimizer: torch.optim.Optimizer | None, micro_batches: int = 1) -> None:
    """Drop the gradients of the step before, then run forward and backward for each micro-batch.

    Raises:
        InputError: there is no scalar loss, or nothing that needs a gradient.
    """
    if optimizer is None:
        step.zero_grad()
    else:
        optimizer.zero_grad()
    for _ in range(micro_batches):
        loss = step(*batch.args, **batch.kwargs)
        if loss.numel() != 1:
            remedy = "Give a loss function, or a model that returns its loss."
            raise InputError("loss", tuple(loss.shape), "is no scalar", remedy)
        if not loss.requires_grad:
            raise InputError("model", type(step.model).__name__, "has no gradient", "Let a parameter require one.")
        loss.backward()
        del loss
    torch.clear_autocast_cache()  # as at the end of the caller's autocast


def update(optimizer: torch.optim.Optimizer | None) -> None:
    """Run the optimizer's step, one parameter after the other."""
    if optimizer is not None:
        with one_by_one(optimizer):
            optimizer.step()


@contextlib.contextmanager
def one_by_one(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the optimizer update one parameter after the other, not all parameters operator by operator.

    A fused optimizer stays fused: its one operator is split (:mod:`loadmaster.executor.placement.splitting`).
    """
    before = [(group, group["foreach"]) for group in optimizer.param_groups if "foreach" in group]
    for group, _ in before:
        if not group.get("fused"):
            group["foreach"] = False
    try:
        yield
    finally:
        for group, foreach in before:
            group["foreach"] = foreach


def name_resident(notes: Notes, model: nn.Module, batch: Batch) -> None:
    """Name the storages that are there before the step: parameters, buffers and the batch."""
    for name, value in batch.named_leaves():
        for tensor in tensors(value):
            notes.name(tensor, f"input {name}", "input")
    for name, buffer in model.named_buffers():
        notes.name(buffer, name, "state")
    for name, parameter in model.named_parameters():
        notes.name(parameter, name, "parameter")


def name_gradients(notes: Notes, model: nn.Module) -> None:
    """Name the storages that are gradients."""
    for name, parameter in model.named_parameters():
        notes.name(parameter.grad, f"gradient of {name}", "gradient")


def name_state(notes: Notes, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Name the storages of the optimizer's state."""
    if optimizer is None:
        return
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and parameter in names:
                notes.name(value, f"{key} of {names[parameter]}", "state")
