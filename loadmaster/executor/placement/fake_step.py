"""A training step on fake tensors: model, batch and optimizer as they are, without their memory.

The model's own tensors are put aside as long as the step is used. Storages that are shared (tied parameters, views of
one buffer) are shared by the fake tensors, too.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.stand_ins import replaced
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.torch_private.autograd import storage_key
from loadmaster.executor.torch_private.fake_tensors import FakeTensorMode
from loadmaster.executor.torch_private.operators import is_traceable_wrapper_subclass


@dataclass(frozen=True, eq=False)
class FakeStep:
    """A step, its batch and its optimizer on fake tensors; running it computes nothing.

    Attributes:
        mode: under which the model runs.
    """

    step: Step
    batch: Batch
    optimizer: torch.optim.Optimizer | None
    mode: FakeTensorMode


@contextlib.contextmanager
def fake_step(
    model: nn.Module, batch: Batch, loss: Loss | None, optimizer: torch.optim.Optimizer | None
) -> Iterator[FakeStep]:
    """Make the fake step, to be run within the block.

    Raises:
        InputError: the model cannot be called with the batch.
    """
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
