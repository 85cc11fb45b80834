"""A model's parameters and buffers as this rank's shares of them, under the model's own names.

Each is a ``DTensor`` that lies as planned, so that PyTorch's own functions know what it is a share of: clipping by a
norm, optimizers, ``torch.distributed.checkpoint``. Kernels go on running on the local tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.modules.batchnorm import _BatchNorm

from loadmaster.errors import InputError
from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.executor.partition.uneven_shares import UnevenShare
from loadmaster.models.partition.placements import WHOLE, Placement


class RunsWithShares(Protocol):
    """A step that computes a loss under any shares that lie as its own do."""

    def run_with(self, shares: Shares, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The loss of one batch, a scalar."""


class Shares(nn.Module):
    """A model's modules, with nothing in them but shares. To call it is to call the step under these shares, so that a
    copy of them, as ``torch.optim.swa_utils.AveragedModel`` makes one, has a loss, too.

    Args:
        model: whose names it has; what several names stand for is one share here, too.
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
            container._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
            for name, parameter in module._parameters.items():
                own: Any = None if parameter is None else shares[id(parameter)]
                container._parameters[name] = own
            for name, buffer in module._buffers.items():
                container._buffers[name] = None if buffer is None else shares[id(buffer)]
            for name, child in module._modules.items():
                container._modules[name] = None if child is None else made[child]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch, a scalar."""
        step = self._step()
        if step is None:
            raise RuntimeError("the step whose shares these are is gone: keep it as long as they are called")
        return step.run_with(self, args, kwargs)

    def train(self, mode: bool = True) -> Shares:
        """Take a mode in which the step would do the same.

        Raises:
            InputError: in that mode it would do something else.
        """
        if self._mode_counts and mode != self.training:
            name = "train" if mode else "eval"
            reason = "is not how the step was captured, and it draws random numbers or updates statistics"
            remedy = f"Make another step of model.{name}() on the same mesh, and give it these shares: "
            raise InputError("mode", name, reason, f"{remedy}other.module.load_state_dict(step.module.state_dict()).")
        return super().train(mode)


class _BatchNormShares(_BatchNorm):
    """The shares of a batch norm: ``torch.optim.swa_utils.update_bn`` finds it, and is refused."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def reset_running_stats(self) -> None:
        """Refuse it: the step has the momentum that was captured.

        Raises:
            InputError: always.
        """
        reason = "are updated by the step with the momentum that was captured"
        remedy = "Load the whole state into the model (model.load_state_dict(step.state_dict())), and do it there."
        raise InputError("running statistics", "reset", reason, remedy)


def _container(module: nn.Module) -> nn.Module:
    return _BatchNormShares() if isinstance(module, _BatchNorm) else nn.Module()


def as_dtensor(values: Tensor, shape: Sequence[int], redistribute: Redistributor, placement: Placement) -> Tensor:
    """This rank's values as what they are: a share of a tensor of that shape."""
    parts = [Replicate() if part < 0 else Shard(part) for part in placement]
    stride = torch.empty(tuple(shape), device="meta").stride()
    axes = redistribute.traffic.axes
    if not all(part < 0 or axis.is_even for axis, part in zip(axes, placement, strict=True)):
        values = UnevenShare(values, redistribute.offsets(shape, placement), shape)
    return DTensor.from_local(values, redistribute.mesh, parts, run_check=False, shape=torch.Size(shape), stride=stride)


def local(share: Tensor) -> Tensor:
    """Of a share what this rank has."""
    assert isinstance(share, DTensor)
    held = share._local_tensor
    return held.own if isinstance(held, UnevenShare) else held


def like(share: Tensor, values: Tensor) -> Tensor:
    """Values of this rank that lie as a share does. ``from_local`` would cost twenty times as much."""
    assert isinstance(share, DTensor)
    held = share._local_tensor
    values = held.like(values) if isinstance(held, UnevenShare) else values
    return DTensor(values, share._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def placement_of(share: Tensor) -> Placement:
    """How a share lies."""
    assert isinstance(share, DTensor)
    return tuple(part.dim if isinstance(part, Shard) else WHOLE for part in share.placements)
