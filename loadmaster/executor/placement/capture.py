"""Capturing a placement problem: one training step, forward, backward and optimizer, as the blocks that it uses.

Two steps run on fake tensors in place of the model's own, and the second one is recorded: the first makes the
optimizer's state. Nothing computes or takes memory, so a laptop captures what it cannot hold; only where no hardware is
named are costs measured, operator by operator. The trace updates one parameter after the other: otherwise all of the
optimizer's state would have to be on the device at once.

Gradients are dropped when the next step starts, as ``zero_grad`` does by default. Storages smaller than ``small_bytes``
do not move: those that still matter count as workspace of the operator that runs meanwhile. Storages that are shared
(tied parameters, views of one buffer) are shared by the fake tensors, too. One thing differs from real tensors: where
two gradients of one tensor meet, autograd adds the second to the first in place, but makes a third one of fake ones.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.costs import CostModel, profiled, roofline
from loadmaster.executor.placement.recorder import (
    Notes,
    Recorder,
    Recording,
    name_gradients,
    name_resident,
    name_state,
    passes,
    update,
)
from loadmaster.executor.placement.trace import SMALL_BYTES, costs_of, trace_of
from loadmaster.executor.steps.batch import AnyBatch, Batch, batch_of
from loadmaster.executor.steps.host_link import host_link
from loadmaster.executor.steps.places import CallPlaces, Place
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.stand_ins import autocast_without_cuda, lacks_values, replaced
from loadmaster.executor.steps.step import Loss, NoLossError, Step
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from loadmaster.executor.torch_private.operators import is_traceable_wrapper_subclass
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
        optimizer: None: the step ends with the gradients.
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
    """Run one step on fake tensors, recorded in ``notes`` if given; InputError if it needs a value or gives no loss."""
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
        remedy = "Compute without .item() and without shapes that depend on the data."
        problem = "asks for a value, which a step that is only traced does not have"
        raise InputError("model", str(error.func), problem, remedy) from error
    except NoLossError as error:
        remedy = "Give a loss function, or a model that returns its loss."
        raise InputError("loss", str(error), "there is no loss in what the model returned", remedy) from error


def _host(device: torch.device, hardware: str | None) -> Tier:
    link = host_link(device, hardware if hardware is not None or device.type == "cuda" else "cpu")
    return Tier("host", link.to_host_gbps, link.from_host_gbps, capacity_bytes=link.capacity_bytes)


@dataclass(frozen=True, eq=False)
class FakeStep:
    """A step, its batch and its optimizer on fake tensors, and the mode under which the model runs."""

    step: Step
    batch: Batch
    optimizer: torch.optim.Optimizer | None
    mode: FakeTensorMode


@contextlib.contextmanager
def fake_step(
    model: nn.Module, batch: Batch, loss: Loss | None, optimizer: torch.optim.Optimizer | None
) -> Iterator[FakeStep]:
    """Make the fake step, to be run within the block; InputError if the batch or the optimizer is not of this model."""
    step = Step(model, loss, expects_loss=True)
    taken = step.batch(batch)
    step.expect_call(taken)
    made = _Made()
    if optimizer is not None:
        own = {id(parameter) for parameter in step.parameters()}
        if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
            remedy = "Make the optimizer of this model's parameters, after the model is on its device."
            raise InputError("optimizer", type(optimizer).__name__, "has parameters of another model", remedy)
    with replaced([step], taken, made.of) as stand_ins, torch.enable_grad():
        twin = None if optimizer is None else _twin(optimizer, made)
        yield FakeStep(step, stand_ins, twin, made.mode)


class _Made:
    """Fake tensors of real ones, each made once; storages that are shared stay shared."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._storages: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = (tensor, self._fake(tensor))
        return self._tensors[id(tensor)][1]

    def _fake(self, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
            remedy = "Use plain dense tensors; a sharded or quantized model is traced before it is wrapped."
            raise InputError("model", type(tensor).__name__, "holds a tensor that is no plain memory", remedy)
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        with self.mode, torch.no_grad():
            storage = tensor.untyped_storage()
            if storage_key(storage) not in self._storages:
                self._storages[storage_key(storage)] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
            base = self._storages[storage_key(storage)]
            made = torch.empty(0, dtype=tensor.dtype, device=device)
            made.set_(base.untyped_storage(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(made, tensor.requires_grad)
            return made.requires_grad_(tensor.requires_grad)


def _twin(optimizer: torch.optim.Optimizer, made: _Made) -> torch.optim.Optimizer:
    """The optimizer before its first step, on the fake parameters."""
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    twin.__dict__.pop("step", None)  # a scheduler's, which is bound to the original
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        groups.append({**group, "params": [made.of(parameter) for parameter in group["params"]]})
    twin.param_groups = groups
    twin.state = defaultdict(dict)
    return twin
