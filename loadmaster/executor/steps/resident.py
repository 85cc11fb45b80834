"""Memory in use before a step starts: parameters, buffers, inputs, gradients and the optimizer's state."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import chain

import torch
from torch import nn

from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.optimizers import held_optimizers
from loadmaster.executor.steps.step_graph import tensor_bytes, tensors
from loadmaster.executor.torch_private.autograd import storage_key

logger = logging.getLogger(__name__)


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients of all parameters that require one."""
    return _storage_bytes(p for p in model.parameters() if p.requires_grad)


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state, present or as its first step will make it."""
    all_states = [t for held in optimizer_states(optimizer).values() for t in held]
    to_come = sum(t.numel() * t.element_size() for t in all_states if t.is_meta)
    return to_come + _storage_bytes(t for t in all_states if not t.is_meta)


def optimizer_states(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[torch.Tensor]]:
    """State tensors of every parameter: as they are, or, before the first step, as that step would make them.

    State that does not exist yet is on device meta, without memory. A wrapper has the state of the optimizers inside,
    and what it keeps itself by now. For an optimizer that cannot step on meta, the result is empty, and the log says
    so.
    """
    if held := held_optimizers(optimizer):
        found: dict[torch.Tensor, list[torch.Tensor]] = {}
        inside = [optimizer_states(one) for one in held]
        own = [] if any(optimizer.state is one.state for one in held) else [_present_states(optimizer)]
        for states in (*inside, *own):
            for p, of in states.items():
                found.setdefault(p, []).extend(of)
        return found
    if optimizer.state:
        return _present_states(optimizer)
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
        what = type(optimizer).__name__
        logger.warning("the state that %s will have is not counted; once it has stepped it is: %s", what, error)
        return {}
    return {p: list(tensors(list(twin.state[of].values()))) for p, of in twins.items()}


def _present_states(optimizer: torch.optim.Optimizer) -> dict[torch.Tensor, list[torch.Tensor]]:
    return {p: list(tensors(list(state.values()))) for p, state in optimizer.state.items()}


def own_bytes(model: nn.Module, batch: AnyBatch) -> int:
    """Bytes of parameters, buffers and inputs, each storage once."""
    return _storage_bytes((*model.parameters(), *model.buffers(), *tensors(batch)))


def cuda_resident_bytes(model: nn.Module, device: torch.device) -> int:
    """Bytes that the CUDA allocator holds on the device, without gradients, but with workspaces that libraries keep per
    thread, and whatever else the process holds."""
    probe = torch.ones(8, 8, device=device, requires_grad=True)
    torch.autograd.grad((probe @ probe).sum(), probe)  # the backward pass runs in a thread of its own
    torch.cuda.synchronize(device)
    gradients = allocated_bytes(p.grad for p in model.parameters() if p.grad is not None)
    return torch.cuda.memory_allocated(device) - gradients


def allocated_bytes(held: Iterable[torch.Tensor]) -> int:
    """Bytes that the allocator has handed out for these tensors: a CUDA block can be a MiB more than was asked for."""
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
    """Device of the first parameter, else of the first input, else the CPU."""
    for tensor in chain(model.parameters(), tensors(batch)):  # one is enough, in every step
        return tensor.device
    return torch.device("cpu")


def one_of_each_storage(held: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of distinct storages: the last one of each storage."""
    return list({storage_key(t.untyped_storage()): t for t in held}.values())


def _storage_bytes(held: Iterable[torch.Tensor]) -> int:
    return sum(map(tensor_bytes, one_of_each_storage(held)))
