"""Shares of a model's parameters and buffers on this rank, under the model's own names.

Each is a ``DTensor`` in its planned placement, so that PyTorch's own functions know what it is a share of: clipping by
a norm, optimizers, ``torch.distributed.checkpoint``. Kernels still run on the local tensors. A ``DTensor`` knows equal
shares only, so along an axis of unequal ones its local tensor is an :class:`UnevenShare`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Replicate, Shard

from loadmaster.errors import InputError
from loadmaster.executor.costs.traffic import defaults
from loadmaster.executor.partition.redistribute import Redistributor
from loadmaster.executor.torch_private.modules import (
    BatchNorm,
    buffers_of,
    children_of,
    copy_non_persistent,
    parameters_of,
)
from loadmaster.executor.torch_private.operators import make_wrapper_subclass, schema_of
from loadmaster.executor.torch_private.sharded_tensors import local_part_of, spec_of
from loadmaster.models.partition.placements import WHOLE, Placement
from loadmaster.models.partition.plan import PartitionPlan
from loadmaster.models.partition.problem import PartitionProblem

aten = torch.ops.aten
_LIST_OPERATORS = ("_foreach_", "_fused_", "_amp_foreach_")
_NORMS = (aten.linalg_vector_norm.default, aten._foreach_norm.Scalar)
_MAKE_ANOTHER = defaults("detach alias clone _to_copy copy_ zero_ empty_like zeros_like ones_like full_like") | {
    aten.fill_.Scalar
}


class UnevenShare(Tensor):
    """Share of a tensor, with its place in the whole, which it tells to ``torch.distributed.checkpoint``. Elementwise
    operators and norms run on it. Operators that need the whole are refused: ``DTensor`` would gather it as if shares
    were equal. ``offsets`` are those of its first value in the whole, whose shape is ``whole``."""

    own: Tensor
    offsets: torch.Size
    whole: torch.Size

    @staticmethod
    def __new__(cls, values: Tensor, offsets: Sequence[int], whole: Sequence[int]) -> UnevenShare:
        shape, stride = values.shape, values.stride()
        found: UnevenShare = make_wrapper_subclass(cls, shape, stride, dtype=values.dtype, device=values.device)
        found.own, found.offsets, found.whole = values, torch.Size(offsets), torch.Size(whole)
        return found

    def like(self, values: Tensor) -> UnevenShare:
        """Share of other values in the same place of the whole."""
        return UnevenShare(values, self.offsets, self.whole)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"UnevenShare({self.own}, offsets={list(self.offsets)}, whole={list(self.whole)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator on this rank's values; raises InputError if it needs more than those."""
        if not _is_local(func, args):
            raise _needs_the_whole(func)
        made = func(*map(_values, args), **{name: _values(value) for name, value in (kwargs or {}).items()})
        if func in _NORMS or made is None:
            return made
        if schema_of(func).is_mutable and not isinstance(made, (list, tuple)):
            return args[0]
        first = next(value for value in args if _holds_share(value))
        pairs = zip(first, made, strict=True) if isinstance(made, (list, tuple)) else [(first, made)]
        found = []
        for one, new in pairs:
            if isinstance(one, UnevenShare) and new.shape != one.shape:
                raise _needs_the_whole(func)
            found.append(one.like(new) if isinstance(one, UnevenShare) else new)
        return found if isinstance(made, (list, tuple)) else found[0]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(self.offsets, self.shape)]

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.own), self.whole)
        return [WriteItem(MetadataIndex(name, self.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, _: object) -> Tensor:
        return self.own


def _is_local(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator needs this rank's elements alone: it is elementwise, or a norm of all elements."""
    name = func.name().partition("::")[2]
    if func == aten.linalg_vector_norm.default:
        return not any(args[2:3])
    if func == aten.view.default:
        return tuple(args[1]) == tuple(args[0].shape)
    return torch.Tag.pointwise in func.tags or name.startswith(_LIST_OPERATORS) or func in _MAKE_ANOTHER


def _needs_the_whole(func: Any) -> InputError:
    remedy = "Take step.state_dict() for whole values, and an optimizer that updates each element by itself."
    return InputError("share", func.name(), "needs the whole tensor, of which ranks have unequal shares", remedy)


def _values(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [_values(one) for one in given]
    return given.own if isinstance(given, UnevenShare) else given


def _holds_share(given: object) -> bool:
    if isinstance(given, (list, tuple)):
        return any(isinstance(one, UnevenShare) for one in given)
    return isinstance(given, UnevenShare)


class RunsWithShares(Protocol):
    """Step that computes the loss of one batch, a scalar, with any shares in the placements of its own."""

    def run_with(self, shares: Shares, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor: ...


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
        made: dict[nn.Module, nn.Module] = {
            module: _BatchNormShares() if isinstance(module, BatchNorm) else nn.Module() for module in model.modules()
        }
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
        """Set the mode; raises InputError if the step would compute something else in it."""
        if self._mode_counts and mode != self.training:
            name = "train" if mode else "eval"
            reason = "is not how the step was captured, and it draws random numbers or updates statistics"
            remedy = f"Make another step of model.{name}() on the same mesh, and give it these shares: "
            raise InputError("mode", name, reason, f"{remedy}other.module.load_state_dict(step.module.state_dict()).")
        return super().train(mode)


class StepOnShares:
    """Training step on this rank's shares, which ``module`` holds under the model's names."""

    module: nn.Module
    problem: PartitionProblem
    plan: PartitionPlan

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over this rank's shares of the parameters."""
        return self.module.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over this rank's shares of the parameters, by the model's names."""
        return self.module.named_parameters()


class _BatchNormShares(BatchNorm):
    """Shares of a batch norm: ``torch.optim.swa_utils.update_bn`` finds it, and is refused."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def reset_running_stats(self) -> None:
        """Refuse, by an InputError, to reset statistics that the step updates with the momentum that was captured."""
        reason = "are updated by the step with the momentum that was captured"
        remedy = "Load the whole state into the model (model.load_state_dict(step.state_dict())), and do it there."
        raise InputError("running statistics", "reset", reason, remedy)


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
    return DTensor(values, spec_of(share), requires_grad=False)  # type: ignore[no-untyped-call, unused-ignore]


def placement_of(share: Tensor) -> Placement:
    """Placement of a share on every axis of the mesh."""
    assert isinstance(share, DTensor)
    return tuple(part.dim if isinstance(part, Shard) else WHOLE for part in share.placements)
