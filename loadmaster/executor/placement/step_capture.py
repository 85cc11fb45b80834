"""Capturing a model: its training step as a placement problem.

Two steps run on fake tensors, the first to make the optimizer's state, the second recorded; nothing of them is
computed, so that a small machine captures for a large GPU. Only costs are measured, operator by operator, when they are
not estimated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)

from loadmaster import live_line
from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.placement.call_places import CallPlaces
from loadmaster.executor.placement.fake_step import FakeStep, fake_step
from loadmaster.executor.placement.recorder import Recorder, Recording
from loadmaster.executor.placement.trace import costs_of, problem_of
from loadmaster.executor.placement.training import name_gradients, name_resident, name_state, passes, update
from loadmaster.executor.steps.autocast import autocast_without_cuda
from loadmaster.executor.steps.batch import AnyBatch, batch_of
from loadmaster.executor.steps.host_link import host_link
from loadmaster.executor.steps.places import Place
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.stand_ins import lacks_values
from loadmaster.executor.steps.step import Loss, NoLossError
from loadmaster.models.placement.problem import PlacementProblem, Tier


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureOptions:
    """The keywords of :func:`capture`, which says what each means."""

    optimizer: torch.optim.Optimizer | None = None
    hardware: str | None = None
    costs: CostModel | None = None
    tiers: Sequence[Tier] | None = None
    budget_bytes: int | None = None
    micro_batches: int = 1
    name: str | None = None
    progress: bool | None = None


def capture(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    hardware: str | None = None,
    costs: CostModel | None = None,
    tiers: Sequence[Tier] | None = None,
    budget_bytes: int | None = None,
    micro_batches: int = 1,
    name: str | None = None,
    progress: bool | None = None,
) -> PlacementProblem:
    """The placement problem of one training step of a model: forward, backward and the optimizer's step.

    Args:
        model: an ordinary module, in the mode and on the device it trains on. With ``hardware`` named it needs no
            values: ``torch.device("meta")`` and ``FakeTensorMode`` will do.
        batch: one batch: a tuple, or a mapping of inputs by keyword. Capture under ``torch.autocast`` if the training
            does.
        loss: of a tuple, called as ``loss(model(*batch[:-1]), batch[-1])``; of a mapping, as ``loss(output, batch)``.
            None if the model computes the loss itself.
        optimizer: steps as it would, one parameter after the other. None: the step ends with the gradients.
        hardware: estimate costs for this device of the catalogue ("h200"). None: measure on the model's device.
        costs: a cost model of your own, instead of either.
        tiers: memory beside the device. None: the host, over the link of ``hardware`` or of the device.
        budget_bytes: device memory for the step; None: to be given at planning time.
        micro_batches: how often gradients are added up before the optimizer's step.
        name: of the problem (default: the model's class).
        progress: whether to say what goes on, in a line on standard error. None: in a terminal or a notebook.

    Raises:
        InputError: the step cannot run on fake tensors, or gives no loss.
    """
    options = CaptureOptions(
        optimizer=optimizer,
        hardware=hardware,
        costs=costs,
        tiers=tiers,
        budget_bytes=budget_bytes,
        micro_batches=micro_batches,
        name=name,
        progress=progress,
    )
    return capture_step(model, batch, loss, options)


def capture_step(model: nn.Module, batch: AnyBatch, loss: Loss | None, options: CaptureOptions) -> PlacementProblem:
    """As :func:`capture`."""
    batch = batch_of(batch)
    what = type(model).__name__
    if options.hardware is None and options.costs is None and lacks_values(model, batch):
        remedy = 'Name the device to estimate costs for: hardware="h200".'
        raise InputError("model", what, "has no values to measure operators with", remedy)
    device = device_of(model, batch)
    costs = options.costs or (profiled(device) if options.hardware is None else roofline(options.hardware))
    tiers = options.tiers or [_host(device, options.hardware)]
    elsewhere = contextlib.nullcontext() if options.hardware is None else autocast_without_cuda()
    with live_line.line(options.progress) as line, unset_fake_temporarily():
        with elsewhere, fake_step(model, batch, loss, options.optimizer) as fake:
            line.show(f"{what}: a first step, which makes the optimizer's state", begins=True)
            run(fake, options.micro_batches)
            line.show(f"{what}: tracing a step", begins=True)
            recording = record(fake, options.micro_batches, with_calls=True)
        line.show(f"{what}: costs of {len(recording.operators)} operators", begins=True)
        known = costs_of(recording.operators, costs)
    whose = "given" if options.costs else f"of {options.hardware}" if options.hardware else f"measured on {device.type}"
    return problem_of(
        recording,
        known,
        tiers,
        options.name or what,
        title=f"{what}, costs {whose}",
        budget_bytes=options.budget_bytes,
    )


def record(fake: FakeStep, micro_batches: int = 1, *, with_calls: bool = False) -> Recording:
    """Record one step."""
    places = CallPlaces(fake.step)
    recorder = Recorder(lambda tensor: isinstance(tensor, FakeTensor), places.here, with_calls=with_calls)
    name_resident(recorder, fake.step.model, fake.batch)
    with places.followed():
        run(fake, micro_batches, recorder, places)
    name_state(recorder, fake.step.model, fake.optimizer)
    return recorder.recording


def run(
    fake: FakeStep, micro_batches: int = 1, recorder: Recorder | None = None, places: CallPlaces | None = None
) -> None:
    """One step.

    Raises:
        InputError: it asks for a value, which fake tensors do not have, or gives no loss.
    """
    seen = contextlib.nullcontext() if recorder is None else recorder
    model = fake.step.model
    try:
        # The recorder comes after the mode that makes fake tensors, so that it sees operators first. The optimizer
        # counts its steps in real numbers, so it runs without that mode.
        with fake.mode, seen:
            passes(fake.step, fake.batch, fake.optimizer, micro_batches)
        if recorder is not None:
            name_gradients(recorder, model)
        if places is not None:
            places.otherwise = Place("optimizer")
        with seen:
            update(fake.optimizer)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise InputError(
            "model",
            str(error.func),
            "asks for a value, which a step that is only traced does not have",
            "Compute without .item() and without shapes that depend on the data, or trace a model that does.",
        ) from error
    except NoLossError as error:
        remedy = "Give a loss, or a model that returns one."
        raise InputError("loss", str(error), "there is no loss in what the model returned", remedy) from error


def _host(device: torch.device, hardware: str | None) -> Tier:
    link = host_link(device, hardware if hardware is not None or device.type == "cuda" else "cpu")
    return Tier("host", link.to_host_gbps, link.from_host_gbps, capacity_bytes=link.capacity_bytes)
