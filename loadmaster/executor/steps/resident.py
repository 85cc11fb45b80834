"""What is in memory before a step starts: parameters, buffers, inputs, gradients and the optimizer's state."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain

import torch
from torch import nn

from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.step_graph import tensor_bytes, tensors

logger = logging.getLogger(__name__)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients of all parameters that require one."""
    return _storage_bytes(p for p in model.parameters() if p.requires_grad)


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state."""
    states = optimizer_states(optimizer)
    if optimizer.state:
        return _storage_bytes(t for held in states.values() for t in held)
    return sum(t.numel() * t.element_size() for held in states.values() for t in held)


def optimizer_states(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[torch.Tensor]]:
    """Of every parameter the tensors of its state: as they are, or, before the first step, as one would make them.

    What is not there yet has no memory (device meta). Of one that trainers have wrapped (accelerate, Lightning) it is
    that of its ``optimizer``. An optimizer that cannot step there has only what it has, and the log says so.
    """
    if optimizer.state:
        return {p: list(tensors(list(state.values()))) for p, state in optimizer.state.items()}
    twins: dict[torch.Tensor, torch.Tensor] = {}
    groups = []
    for g in optimizer.param_groups:
        for p in g["params"]:
            twins[p] = torch.nn.Parameter(torch.empty_like(p, device="meta"))
            twins[p].grad = torch.empty_like(twins[p])
        # Fused kernels exist for real devices only; the state is the same.
        plainly = dict.fromkeys({"fused", "capturable"} & g.keys(), False)
        groups.append({**g, "params": [twins[p] for p in g["params"]], **plainly})
    try:
        twin = type(optimizer)(groups)  # type: ignore[call-arg]
        twin.step()
    except Exception as error:  # noqa: BLE001 - the optimizer's own
        if isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            return optimizer_states(inner)
        what = type(optimizer).__name__
        logger.warning("the state that %s will have is not counted; once it has stepped it is: %s", what, error)
        return {}
    return {p: list(tensors(list(twin.state[of].values()))) for p, of in twins.items()}


def own_bytes(model: nn.Module, batch: AnyBatch) -> int:
    """Parameters, buffers and inputs."""
    return _storage_bytes((*model.parameters(), *model.buffers(), *tensors(batch)))


def cuda_resident_bytes(model: nn.Module, device: torch.device) -> int:
    """What the allocator holds on the device without gradients.

    It counts what nobody else can: workspaces that libraries keep per thread, and whatever else the process holds.
    """
    probe = torch.ones(8, 8, device=device, requires_grad=True)
    torch.autograd.grad((probe @ probe).sum(), probe)  # the backward pass runs in a thread of its own
    torch.cuda.synchronize(device)
    gradients = allocated_bytes(p.grad for p in model.parameters() if p.grad is not None)
    return torch.cuda.memory_allocated(device) - gradients


def allocated_bytes(held: Iterable[torch.Tensor]) -> int:
    """What the allocator has handed out for these tensors. A block of CUDA's can be a MiB larger than what was asked
    for: with those of two hundred gradients that makes 20 MiB."""
    distinct = one_of_each_storage(held)
    blocks: dict[int, int] = {}
    if any(t.is_cuda for t in distinct) and torch.cuda.get_allocator_backend() == "native":  # others have no blocks
        for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
            address = segment["address"]
            for block in segment["blocks"]:
                blocks[address] = block["size"]
                address += block["size"]
    return sum(blocks.get(t.untyped_storage().data_ptr(), tensor_bytes(t)) for t in distinct)


def device_of(model: nn.Module, batch: AnyBatch) -> torch.device:
    """The device of the first parameter, or of the first input."""
    for tensor in chain(model.parameters(), tensors(batch)):  # one is enough, in every step
        return tensor.device
    return torch.device("cpu")


def one_of_each_storage(held: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that share none: of those of one storage the last."""
    return list({t.untyped_storage()._cdata: t for t in held}.values())


def _storage_bytes(held: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages of tensors."""
    return sum(map(tensor_bytes, one_of_each_storage(held)))
