"""Shares of a model's parameters and buffers on this rank, under the model's own names.

Each is a ``DTensor`` in its planned placement, so that PyTorch's own functions know what it is a share of: clipping by
a norm, optimizers, ``torch.distributed.checkpoint``. Kernels still run on the local tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from loadmaster.errors import InputError
from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.executor.partition.uneven_shares import UnevenShare
from loadmaster.executor.torch_private.modules import (
    BatchNorm,
    buffers_of,
    children_of,
    copy_non_persistent,
    parameters_of,
)
from loadmaster.executor.torch_private.sharded_tensors import local_part_of, spec_of
from loadmaster.models.partition.placements import WHOLE, Placement


class RunsWithShares(Protocol):
    """Step that computes a loss with any shares in the placements of its own."""

    def run_with(self, shares: Shares, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Compute the loss of one batch with these shares, a scalar."""


class Shares(nn.Module):
    """Module tree of a model that holds nothing but shares. Calling it calls the step with these shares, so that a copy
    of them, as ``torch.optim.swa_utils.AveragedModel`` makes one, has a loss, too.

    Args:
        model: that names are taken from; a tensor with several names is one share here, too.
        shares: of every parameter and buffer, by the ``id`` of the model's.
        step: held weakly.
        mode_counts: whether the step draws random numbers or updates statistics, as models do while they train.
    """

    def __init__(
        self, model: nn.Module, shares: Mapping[int, Tensor], step: RunsWithShares, *, mode_counts: bool
    ) -> None:
        super().__init__()
        self._step = weakref.ref(step)
        self._mode_counts = mode_counts
        made: dict[nn.Module, nn.Module] = {module: _container(module) for module in model.modules()}
        made[model] = self
        for module, container in made.items():
            container.training = module.training
            copy_non_persistent(module, container)
            for name, parameter in parameters_of(module).items():
                own: Any = None if parameter is None else shares[id(parameter)]
                parameters_of(container)[name] = own
            for name, buffer in buffers_of(module).items():
                buffers_of(container)[name] = None if buffer is None else shares[id(buffer)]
            for name, child in children_of(module).items():
                children_of(container)[name] = None if child is None else made[child]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the loss of one batch with these shares, a scalar."""
        step = self._step()
        if step is None:
            raise RuntimeError("the step whose shares these are is gone: keep it as long as they are called")
        return step.run_with(self, args, kwargs)

    def train(self, mode: bool = True) -> Shares:
        """Set the mode, if the step computes the same in it.

        Raises:
            InputError: in that mode it would do something else.
        """
        if self._mode_counts and mode != self.training:
            name = "train" if mode else "eval"
            reason = "is not how the step was captured, and it draws random numbers or updates statistics"
            remedy = f"Make another step of model.{name}() on the same mesh, and give it these shares: "
            raise InputError("mode", name, reason, f"{remedy}other.module.load_state_dict(step.module.state_dict()).")
        return super().train(mode)


class _BatchNormShares(BatchNorm):
    """Shares of a batch norm: ``torch.optim.swa_utils.update_bn`` finds it, and is refused."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def reset_running_stats(self) -> None:
        """Refuse to reset running statistics: the step updates them with the momentum that was captured.

        Raises:
            InputError: always.
        """
        reason = "are updated by the step with the momentum that was captured"
        remedy = "Load the whole state into the model (model.load_state_dict(step.state_dict())), and do it there."
        raise InputError("running statistics", "reset", reason, remedy)


def _container(module: nn.Module) -> nn.Module:
    return _BatchNormShares() if isinstance(module, BatchNorm) else nn.Module()


def as_dtensor(values: Tensor, shape: Sequence[int], redistribute: Redistributor, placement: Placement) -> Tensor:
    """Make a ``DTensor`` of this rank's values: a share of a tensor of that shape."""
    parts = [Replicate() if part < 0 else Shard(part) for part in placement]
    stride = torch.empty(tuple(shape), device="meta").stride()
    axes = redistribute.traffic.axes
    if not all(part < 0 or axis.is_even for axis, part in zip(axes, placement, strict=True)):
        values = UnevenShare(values, redistribute.offsets(shape, placement), shape)
    return DTensor.from_local(values, redistribute.mesh, parts, run_check=False, shape=torch.Size(shape), stride=stride)


def local(share: Tensor) -> Tensor:
    """Return the local tensor of a share."""
    assert isinstance(share, DTensor)
    held = local_part_of(share)
    return held.own if isinstance(held, UnevenShare) else held


def like(share: Tensor, values: Tensor) -> Tensor:
    """Make a ``DTensor`` of this rank's values in a share's placement; ``from_local`` takes twenty times as long."""
    assert isinstance(share, DTensor)
    held = local_part_of(share)
    values = held.like(values) if isinstance(held, UnevenShare) else values
    return DTensor(values, spec_of(share), requires_grad=False)  # type: ignore[no-untyped-call]


def placement_of(share: Tensor) -> Placement:
    """Placement of a share on every axis of the mesh."""
    assert isinstance(share, DTensor)
    return tuple(part.dim if isinstance(part, Shard) else WHOLE for part in share.placements)
