"""Operators that move a tensor to host memory and back in parallel with compute, in graphs that a compiler orders.

``send`` and ``fetch`` start a copy on the device's copy stream, ``sent`` and ``fetched`` make the compute stream wait
for it. All take what must stay alive: the source is an argument of ``sent`` and the host block one of ``fetched``, so
neither graphs nor compilers free or write over memory that a copy still reads; allocations are made on the compute
stream, whose allocator may hand them out again as soon as the wait is queued there. ``sent`` and ``fetched`` say that
they write to the tensor whose copy they wait for: that is when its contents are defined, and it keeps compilers from
dropping them, or moving readers before them.

A host tensor holds the elements of its source in the order of memory, in the layout that ``send`` and ``fetch`` name,
whatever layout a compiler gives the source. One copy stream serves both directions, first in, first out, which is how
plans count copies (:mod:`loadmaster.models.memory.links`). It also lets a host block be used again without waiting.
Tensors that are not on a CUDA device are copied at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from loadmaster.executor.steps.layouts import fills
from loadmaster.executor.steps.operators import operator
from loadmaster.executor.steps.pinned import pool_of


@dataclass(frozen=True)
class _Copy:
    """Copy under way, the stream whose work it follows, and the tensors that must not be freed before it is over."""

    over: torch.cuda.Event
    compute: torch.cuda.Stream
    held: tuple[Tensor, ...]


# By the address of the tensor that is written to.
_sends: dict[int, _Copy] = {}
_fetches: dict[int, _Copy] = {}


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _flat(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """Flatten a tensor in the memory order of the given strides, without a copy where possible [numel]."""
    if not fills(tensor.shape, stride):
        return tensor.reshape(-1)
    if any(a != b for a, b, n in zip(tensor.stride(), stride, tensor.shape, strict=True) if n != 1):
        tensor = tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def _start(target: Tensor, source: Tensor, device: torch.device) -> _Copy:
    compute, copying = torch.cuda.current_stream(device), _copy_stream(device)
    copying.wait_stream(compute)
    over = torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(copying):
        target.copy_(source, non_blocking=True)
        over.record(copying)
    return _Copy(over, compute, (target, source))


def _wait(copies: dict[int, _Copy], target: Tensor, device: torch.device) -> None:
    """Let the compute stream wait for the copy into a tensor, if one is under way."""
    copy = copies.pop(target.data_ptr(), None) if device.type == "cuda" else None
    if copy is not None:
        torch.cuda.current_stream(device).wait_event(copy.over)


def forget_copies() -> None:
    """Free what passes that raised hold for copies that nobody waits for any more. A pass that another thread runs at
    the time loses only the overlap of its copies: its stream waits before they are forgotten."""
    for copies in (_sends, _fetches):
        for address, copy in list(copies.items()):
            copy.compute.wait_event(copy.over)
            copies.pop(address, None)


def _send(source: Tensor, stride: Sequence[int]) -> Tensor:
    flat = _flat(source, stride)
    if not source.is_cuda or not source.numel():
        return flat.clone().cpu()
    host = pool_of(source.device.index).take(flat.numel() * flat.element_size()).view(flat.dtype)
    copy = _start(host, flat, source.device)
    # The graph holds the source until it has waited. A pass that is given up may free it: nobody reads the copy then,
    # and the next copy into the block runs later on the same stream.
    own = flat.untyped_storage().data_ptr() != source.untyped_storage().data_ptr()
    _sends[host.data_ptr()] = _Copy(copy.over, copy.compute, (flat,) if own else ())
    return host


def _fetch(host: Tensor, size: Sequence[int], stride: Sequence[int], device: torch.device) -> Tensor:
    result = torch.empty_strided(size, stride, dtype=host.dtype, device=device)
    dense = fills(size, stride)
    target, source = (_flat(result, stride), host) if dense else (result, host.view(list(size)))
    if not result.is_cuda or not result.numel():
        target.copy_(source)
    else:
        _fetches[result.data_ptr()] = _start(target, source, result.device)
    return result


send = operator(
    "send(Tensor source, int[] stride) -> Tensor",
    _send,
    lambda source, stride: source.new_empty(source.numel(), device="cpu"),
)
sent = operator(
    "sent(Tensor source, Tensor(a!) host) -> ()",
    lambda source, host: _wait(_sends, host, source.device),
    lambda source, host: None,
)
fetch = operator(
    "fetch(Tensor host, int[] size, int[] stride, Device device) -> Tensor",
    _fetch,
    lambda host, size, stride, device: torch.empty_strided(size, stride, dtype=host.dtype, device=device),
)
fetched = operator(
    "fetched(Tensor(a!) result, Tensor host) -> ()",
    lambda result, host: _wait(_fetches, result, result.device),
    lambda result, host: None,
)
