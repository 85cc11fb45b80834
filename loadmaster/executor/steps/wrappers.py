"""Data-parallel wrappers: the memory they add on every rank, and how a planned step runs inside one.

A plan is for one graph, so a wrapper must not reach inside it. :class:`~torch.nn.parallel.DistributedDataParallel`
never does: it acts on the gradients when the graph has made them. FSDP2's ``fully_shard`` acts before and after the
module it is given, so it is given what has a plan: the whole step, or each block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from loadmaster.errors import InputError
from loadmaster.executor.steps.step_graph import tensor_bytes
from loadmaster.executor.torch_private.modules import has_backward_hooks

Parallel = Literal["ddp", "fsdp2"]
PARALLEL: tuple[Parallel, ...] = ("ddp", "fsdp2")

_SHARD_THE_STEP = (
    "Shard the planned step, fully_shard(apply(plan, model, loss)), or plan block by block (capture_block)."
)


@dataclass(frozen=True)
class WrapperBytes:
    """Bytes that a wrapper adds to one rank's memory, beyond the step's own parameters and gradients: through the whole
    step (negative where sharding the optimizer's state saves more than it costs), more only until the forward pass is
    over, and more once the backward pass is over."""

    step_bytes: int = 0
    forward_bytes: int = 0
    end_bytes: int = 0


def wrapper_bytes(parallel: Parallel | None, ranks: int, model: nn.Module, optimizer_bytes: int = 0) -> WrapperBytes:
    """Count the bytes that a wrapper around the step of this (unwrapped) model adds on each rank.

    ``ddp`` keeps a bucket for every gradient, which the all-reduce runs on. ``fsdp2``, one group around the whole step,
    keeps a shard of the parameters and of the optimizer's state; the whole parameters are there during the step, and
    twice until the forward pass is over, since FSDP2 lets go of the all-gather's result only then. At the end the
    reduce-scatter takes the place of the whole parameters, and makes a shard of the gradients. Raises InputError if the
    wrapper is unknown, or ``ranks`` is not positive.
    """
    if ranks < 1:
        raise InputError("ranks", ranks, "is not a number of ranks", "Give the ranks that share the batch, 1 or more.")
    parameters = list(model.parameters())
    if parallel is None:
        return WrapperBytes()
    if parallel == "ddp":
        return WrapperBytes(sum(tensor_bytes(p) for p in parameters if p.requires_grad))
    if parallel == "fsdp2":
        shards = [(_shard_bytes(p, ranks), p.requires_grad) for p in parameters]
        kept = sum(size for size, _ in shards)
        padding = ranks * kept - sum(tensor_bytes(p) for p in parameters)
        gradients = sum(size for size, trained in shards if trained)
        state = -(-optimizer_bytes // ranks) - optimizer_bytes
        return WrapperBytes(kept + padding + state, ranks * kept if ranks > 1 else 0, gradients)
    raise InputError("parallel", parallel, "is no wrapper known here", f"Choose one of: {', '.join(PARALLEL)}.")


def _shard_bytes(parameter: torch.Tensor, ranks: int) -> int:
    """Bytes of one rank's shard of a parameter: rows of its first dimension, as many on every rank."""
    rows = parameter.shape[0] if parameter.dim() else 1
    return tensor_bytes(parameter) * -(-rows // ranks) // max(rows, 1)


def is_among_ranks() -> bool:
    """Return whether ``torch.distributed`` is initialized: then ranks may wait for one another."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def ddp_of(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """Return the model if it is wrapped in DistributedDataParallel; else None. Raises InputError if the wrapper casts
    parameters itself, inside the graph."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None
    if model.mixed_precision is not None:
        problem = "DistributedDataParallel casts inside the step"
        raise InputError("model", "mixed_precision", problem, "Use torch.autocast instead.")
    return model


def own_module(model: nn.Module) -> nn.Module:
    """Return the user's own module, without a DistributedDataParallel around the whole of it. Raises an InputError that
    names module and remedy if a wrapper or a hook acts inside the step, where no plan can follow it."""
    ddp = ddp_of(model)
    own = model if ddp is None else cast(nn.Module, ddp.module)
    for name, module in own.named_modules():
        field = f"model.{name}" if name else "model"
        kind = type(module).__name__
        if isinstance(module, FSDPModule):
            raise InputError(field, kind, "is sharded on its own, inside the step", _SHARD_THE_STEP)
        if isinstance(module, FullyShardedDataParallel):
            remedy = "Use FSDP2: fully_shard(apply(plan, model, loss))."
            raise InputError(field, kind, "gathers its parameters inside the step", remedy)
        if has_backward_hooks(module):
            remedy = "Hook its parameters instead (Tensor.register_hook)."
            raise InputError(field, kind, "has a hook on its backward pass, which no graph holds", remedy)
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            remedy = "Wrap the whole model in DistributedDataParallel, or the planned step."
            raise InputError(field, kind, "is a data-parallel wrapper inside the step", remedy)
    return own


@contextlib.contextmanager
def standing_in(ddp: nn.parallel.DistributedDataParallel, step: nn.Module) -> Iterator[None]:
    """Make the step the wrapper's module for one call: the wrapper then acts around the step."""
    own = ddp.module
    ddp.module = step
    try:
        yield
    finally:
        ddp.module = own
