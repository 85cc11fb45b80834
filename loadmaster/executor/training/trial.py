"""A training problem, measured: rates of updates and moves, and trial steps of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.host_link import HOST_SHARE, host_bytes
from loadmaster.executor.steps.resident import allocated_bytes
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.unchanged import unchanged
from loadmaster.executor.training.copies import Packing
from loadmaster.executor.training.layers import ModelGroup, ModelLayers, copy_format, kind_of
from loadmaster.executor.training.meter import Meter
from loadmaster.executor.training.rates import Rates, measured_rates
from loadmaster.executor.training.trial_steps import Trials
from loadmaster.executor.training.updates import moving, states_like
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem

_MOVE_US = 30.0  # beside the bytes: gradients of a group move tensor by tensor, all else at once


def measured_problem(
    name: str,
    model: nn.Module,
    batch: Batch,
    loss: Loss | None,
    layers: ModelLayers,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    *,
    autocast: torch.dtype | None,
    accumulate: int,
    clips: bool,
    compiled: bool,
    budget_bytes: int | None = None,
    say: Callable[[str], None],
) -> tuple[TrainingProblem, ModelLayers]:
    """Measure a model's training problem on a device, and find which layers use parameters outside of the blocks, of
    ``layers`` that do not know it. The model, its gradients and random state stay as they were.

    Args:
        meter: of the device.
        budget_bytes: what trials should not exceed, beyond what they must take; None: what the device has.

    Raises:
        InputError: the model does not fit the device even with every block checkpointed, or a block does not do the
            same when it runs again.
    """
    copies = copy_format(autocast, accumulate)
    groups = [_group(of, optimizer, copies) for of in layers.groups]
    class_of = _class_of(layers)
    problem = TrainingProblem(
        name=name,
        layers=tuple(Layer(words, number) for words, number in zip(layers.names, class_of, strict=True)),
        classes=(),
        groups=tuple(groups),
        host=Tier("host", 1.0, 1.0),
        micro_batches=accumulate,
        clip_grad_norm=clips,
    )
    with _told(model, meter), _as_before(Step(model, loss), batch, meter.device) as set_aside:
        say("measuring updates and moves")
        rates = measured_rates(optimizer, meter, copies)
        trials = Trials(model, batch, loss, layers, problem, optimizer, meter, autocast=autocast, compiled=compiled)
        try:
            found = trials.measured(budget_bytes, say)
        finally:
            trials.step.detach()
    # Gradients and state that the user has already are those of the step.
    states = [t for state in optimizer.state.values() for t in tensors(state)]
    taken_over = allocated_bytes(t for t in (*set_aside, *states) if t.device == meter.device)
    update_bytes = _update_bytes(layers, copies, rates)
    measured = replace(
        problem,
        classes=tuple(
            LayerClass(f"class {n}", tuple(_with_room(point, update_bytes) for point in points))
            for n, points in enumerate(found)
        ),
        groups=tuple(_timed(of, group, rates) for of, group in zip(trials.layers.groups, groups, strict=True)),
        host=Tier("host", rates.to_host_gbps, rates.from_host_gbps, _MOVE_US, int(HOST_SHARE * host_bytes())),
        fixed_bytes=max(0, trials.fixed_bytes - taken_over),
    )
    return measured, trials.layers


def _group(of: ModelGroup, optimizer: torch.optim.Optimizer, copies: torch.dtype | None) -> Group:
    weights = Packing(of.parameters, [p.dtype for p in of.parameters]).size_bytes
    copy_bytes = Packing(of.parameters, of.copy_dtypes(copies)).size_bytes
    found = Group(of.name, of.layers, weights, copy_bytes)
    if of.updated_by is None:
        return found
    like = states_like(optimizer, of.updated_by, of.parameters)
    moved = [like[n][key] for n, key in moving(like)]
    state = Packing(moved, [t.dtype for t in moved]).size_bytes
    return replace(found, gradient_bytes=weights, copy_gradient_bytes=copy_bytes, state_bytes=state)


def _update_bytes(layers: ModelLayers, copies: torch.dtype | None, rates: Rates) -> int:
    """Most bytes that an update of a group on the device makes for a while: gradients that copies have in another
    format than the master weights, and what the optimizer makes of them."""
    return max(
        (
            sum(
                p.numel() * p.element_size() * (dtype != p.dtype) + math.ceil(p.numel() * rates.device_bytes)
                for p, dtype in zip(of.parameters, of.copy_dtypes(copies), strict=True)
            )
            for of in layers.groups
            if of.updated_by is not None
        ),
        default=0,
    )


def _with_room(point: Point, update_bytes: int) -> Point:
    """Return a point that has room for an update after each phase: what the phase itself took is free then."""
    return replace(
        point,
        forward_bytes=max(point.forward_bytes, update_bytes),
        backward_bytes=max(point.backward_bytes, update_bytes),
    )


def _timed(of: ModelGroup, group: Group, rates: Rates) -> Group:
    group = replace(group, layers=of.layers)
    if of.updated_by is None:
        return group
    count = sum(p.numel() for p in of.parameters)
    return replace(group, update_us=rates.device_us * count, host_update_us=rates.host_us * count)


def _class_of(layers: ModelLayers) -> list[int]:
    """Number the classes of layers: blocks of one type with parameters of the same shapes do the same."""
    known: dict[Any, int] = {"before": 0}
    numbers = [known.setdefault(kind_of(block), len(known)) for block in layers.blocks]
    return [0, *numbers, len(known)]


@contextmanager
def _as_before(step: Step, batch: Batch, device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Give model, gradients and random state back as they were; gives the gradients that are set aside meanwhile.
    Parameters' own memory is held, and shown again: trials move what they show, and write to none of it."""
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        unchanged(step, batch, writes_parameters=False) as set_aside,
    ):
        shown = [(t, t.data) for t in (*step.parameters(), *step.buffers())]
        try:
            yield set_aside
        finally:
            for tensor, data in shown:
                tensor.data = data


@contextmanager
def _told(model: nn.Module, meter: Meter) -> Iterator[None]:
    """Say in the user's words that a trial does not fit, or that a block does something else when it runs again."""
    is_there = all(p.device == meter.device for p in model.parameters())
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "Give a smaller batch, or name smaller blocks: blocks=[...]."
        if is_there:
            remedy = f"Call model.cpu() first, so that weights come as they are needed. {remedy}"
        problem = "does not fit the device in a trial step, with one block at most that is not checkpointed"
        raise InputError("model", type(model).__name__, problem, remedy) from error
    except CheckpointError as error:
        remedy = "Turn off what it remembers between two calls, such as a cache (use_cache=False)."
        raise InputError(
            "model", str(error).splitlines()[0], "does not do the same when it runs again", remedy
        ) from error
