"""Capturing a placement problem: one training step, forward, backward and optimizer, as the blocks that it uses.

Two steps run on fake tensors in place of the model's own, and the second one is recorded: the first makes the
optimizer's state. Nothing of it computes or takes memory, so that a laptop captures what it cannot hold; only costs are
measured, operator by operator, where no hardware is named. Optimizers update one parameter after the other in the
trace: all of the state in one operator would have to be on the device at once.

Gradients are dropped when the next step starts, as ``zero_grad`` does by default. Storages smaller than ``small_bytes``
do not move: those that still matter count as workspace of the operator that runs meanwhile.

One thing differs from a step on real tensors: where two gradients of one tensor meet, autograd adds the second to the
first in place, but makes a third one where tensors are fake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.placement.call_places import CallPlaces
from loadmaster.executor.placement.fake_step import FakeStep, fake_step
from loadmaster.executor.placement.recorder import Notes, Recorder, Recording
from loadmaster.executor.placement.trace import SMALL_BYTES, costs_of, trace_of
from loadmaster.executor.placement.training import name_gradients, name_resident, name_state, passes, update
from loadmaster.executor.steps.autocast import autocast_without_cuda
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.host_link import host_link
from loadmaster.executor.steps.places import Place
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.stand_ins import lacks_values
from loadmaster.executor.steps.step import Loss, NoLossError
from loadmaster.executor.torch_private.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from loadmaster.models.placement.problem import PlacementProblem, Tier


def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    hardware: str | None = "h200",
    costs: CostModel | None = None,
    tiers: Sequence[Tier] | None = None,
    budget_bytes: int | None = None,
    micro_batches: int = 1,
    small_bytes: int = SMALL_BYTES,
    name: str | None = None,
) -> PlacementProblem:
    """Capture the placement problem of a training step.

    Args:
        batch, loss: as for :func:`loadmaster.executor.capture`. Capture under ``torch.autocast`` if the training does.
        optimizer: of the model's parameters; None: the step ends with the gradients.
        hardware: the entry of the catalogue that times, and the link to host memory, are estimated for. None: both are
            measured on the model's device.
        costs: of operators, instead of the entry's.
        tiers: where blocks may be placed; None: host memory, over the entry's link.
        budget_bytes: device memory for the step; None: to be given at planning time.
        micro_batches: how often gradients are added up before the optimizer's step.
        small_bytes: storages smaller than that stay on the device.
        name: of the problem; None: the model's class.

    Raises:
        InputError: the batch does not fit the model, the loss is not a scalar, nothing needs a gradient, or the step
            asks for a value, which tensors without memory do not have.
    """
    given = batch_of(batch)
    what = type(model).__name__
    if hardware is None and costs is None and lacks_values(model, given):
        remedy = 'Name the device to estimate costs for: hardware="h200".'
        raise InputError("model", what, "has no values to measure operators with", remedy)
    device = device_of(model, given)
    known = costs or (profiled(device) if hardware is None else roofline(hardware))
    beside = tuple(tiers) if tiers is not None else (_host(device, hardware),)
    elsewhere = contextlib.nullcontext() if hardware is None else autocast_without_cuda()
    with unset_fake_temporarily():
        with elsewhere, fake_step(model, given, loss, optimizer) as fake:
            run(fake, micro_batches)
            recording = record(fake, micro_batches)
        costing = costs_of(recording.operators, known)
    return trace_of(
        recording, costing, beside, name or what, small_bytes=small_bytes, budget_bytes=budget_bytes
    ).problem


def record(fake: FakeStep, micro_batches: int = 1) -> Recording:
    """Record the operators and storages of one step on fake tensors."""
    places = CallPlaces(fake.step)
    notes = Notes(lambda tensor: isinstance(tensor, FakeTensor), places.here, with_calls=True)
    name_resident(notes, fake.step.model, fake.batch)
    with places.followed():
        run(fake, micro_batches, notes, places)
    name_state(notes, fake.step.model, fake.optimizer)
    return notes.recording


def run(fake: FakeStep, micro_batches: int = 1, notes: Notes | None = None, places: CallPlaces | None = None) -> None:
    """Run one step on fake tensors, recorded in ``notes`` if they are given.

    Raises:
        InputError: it asks for a value, which fake tensors do not have, or gives no loss.
    """
    seen = contextlib.nullcontext() if notes is None else Recorder(notes)
    try:
        # The recorder comes after the mode that makes fake tensors, so that it sees operators first. The optimizer
        # counts its steps in real numbers, so it runs without that mode.
        with fake.mode, seen:
            passes(fake.step, fake.batch, fake.optimizer, micro_batches)
        if notes is not None:
            name_gradients(notes, fake.step.model)
        if places is not None:
            places.otherwise = Place("optimizer")
        with seen:
            update(fake.optimizer)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InputError(
            "model",
            str(error.func),
            "asks for a value, which a step that is only traced does not have",
            "Compute without .item() and without shapes that depend on the data.",
        ) from error
    except NoLossError as error:
        remedy = "Give a loss function, or a model that returns its loss."
        raise InputError("loss", str(error), "there is no loss in what the model returned", remedy) from error


def _host(device: torch.device, hardware: str | None) -> Tier:
    link = host_link(device, hardware if hardware is not None or device.type == "cuda" else "cpu")
    return Tier("host", link.to_host_gbps, link.from_host_gbps, capacity_bytes=link.capacity_bytes)
