"""Memory that all ranks of an NVLink domain can write to: flags and slots, one arena per group and GPU.

Layout of every rank's arena: flags of parity 0 and 1, packed slots of parity 0 and 1, simple slots of parity 0 and 1.
Packed slots and flags are told from old ones by their number, so they begin as zeros and hold nothing else ever.

Source: ``torch.distributed._symmetric_memory`` of PyTorch 2.11 to 2.13; only ``empty``, ``rendezvous`` and
``get_buffer`` are used. No multicast: torch is told to make none.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from loadmaster.errors import InputError, LoadmasterError
from loadmaster.executor.collective.faults import Unanswered, peer_error
from loadmaster.executor.collective.fused.kernel import FAILURE_WORDS, Kernels
from loadmaster.executor.collective.fused.table import Protocol, Table
from loadmaster.executor.torch_private.distributed import symmetric_memory

_MARK = 0x10AD


@dataclass(frozen=True)
class Capacity:
    """Bytes of one parity of an arena; the same on every rank. It takes twice their sum of every GPU."""

    flags_bytes: int = 1 << 20
    packed_bytes: int = 8 << 20
    simple_bytes: int = 64 << 20

    @property
    def total_bytes(self) -> int:
        return 2 * (self.flags_bytes + self.packed_bytes + self.simple_bytes)

    def slots(self, protocol: Protocol) -> tuple[int, int]:
        """Offset of the first parity's slots, and bytes of each parity's."""
        first = 2 * self.flags_bytes
        return (
            (first, self.packed_bytes) if protocol == "packed" else (first + 2 * self.packed_bytes, self.simple_bytes)
        )


@dataclass(frozen=True)
class Region:
    """Memory that all ranks share: this rank's, and the addresses of every rank's, as this GPU sees them."""

    memory: torch.Tensor
    addresses: tuple[int, ...]

    @property
    def begin(self) -> int:
        return self.memory.data_ptr()

    @property
    def end(self) -> int:
        return self.begin + self.memory.nbytes


class Arena:
    """This rank's arena, the addresses of all, the built kernels, and what the kernels keep count of.

    Attributes:
        addresses: of every rank's arena, as this GPU sees them.
        state: number of the last call, calls, blocks begun, failures; on the device.
        failure: what a kernel waited for in vain; in pinned memory.
        stream: handle of the last call's; -1: there was none.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, capacity: Capacity) -> None:
        """Make the arena; every rank of the group does so, with the same capacity. LoadmasterError: the GPUs cannot
        write to each other's memory, or torch says that they do not."""
        self.device, self.capacity, self._group = device, capacity, group
        self.rank, self.size = group.rank(), group.size()
        self.kernels = Kernels(device)
        self.memory, self.addresses = _shared(group, device, capacity.total_bytes)
        self.state = torch.zeros(4, dtype=torch.int64, device=device)
        self.failure = torch.zeros(FAILURE_WORDS, dtype=torch.int64, pin_memory=True)
        self._failed = self.failure.numpy()
        self.regions: list[Region] = []
        self._tables: list[Table] = []
        # No stream has this handle. C++ looks here, too.
        self._stream = ctypes.c_int64(-1)
        self._last: torch.cuda.Stream | None = None
        torch.cuda.synchronize(device)
        dist.barrier(group)

    def empty(self, size_bytes: int) -> tuple[torch.Tensor, int]:
        """Make memory that all ranks share, with its number in ``regions``; every rank asks for as much. It stays."""
        memory, addresses = _shared(self._group, self.device, max(1, -(-size_bytes // 16)) * 16)
        self.regions.append(Region(memory, tuple(addresses)))
        return memory, len(self.regions) - 1

    def region_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the region that holds a tensor; None if no region does."""
        at, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        found = (k for k, region in enumerate(self.regions) if region.begin <= at and end <= region.end)
        return next(found, None)

    def register(self, table: Table) -> int:
        """Number a table, to know it by when it fails."""
        self._tables.append(table)
        return len(self._tables) - 1

    def check(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        """Raise PeerError, with message and peer, if a kernel waited in vain; the arena is of no use from then on. It
        does not wait for kernels to end."""
        if not self._failed[0]:
            return
        _, number, stream, lane, turn, word, operand, expected, seen = (int(w) for w in self._failed)
        table = self._tables[number]
        awaited = table.awaited(self.rank, stream, word, operand)
        why = (
            f"{table.describe(self.rank, stream, word)}: stream {stream}, lane {lane}, round {turn} of a table of "
            f"{table.protocol} words; expected number {expected}, saw {seen}"
        )
        lost = Unanswered(
            step=turn,
            message=-1 if awaited.message is None else awaited.message,
            chunks=() if awaited.chunk is None else (awaited.chunk,),
            peer=awaited.peer,
            sends=False,
            seconds=timeout_s,
            why=why,
        )
        raise peer_error(lost, self.rank, group, "fused")

    @property
    def stream(self) -> int:
        return self._stream.value

    @property
    def stream_address(self) -> int:
        """Address of the handle of the last call's stream."""
        return ctypes.addressof(self._stream)

    def order(self, stream: int) -> None:
        """Let a call on another stream (the current one's handle) wait for those before: calls share the arena. A graph
        under capture cannot."""
        now = torch.cuda.current_stream(self.device)
        if self._last is not None and not torch.cuda.is_current_stream_capturing():
            now.wait_stream(self._last)
        self._last, self._stream.value = now, stream


_ARENAS: WeakKeyDictionary[dist.ProcessGroup, Arena] = WeakKeyDictionary()


def arena_of(group: dist.ProcessGroup, device: torch.device, capacity: Capacity | None = None) -> Arena:
    """Return the group's arena, made by the first call; every rank calls it with the same arguments. InputError: the
    group has an arena of another capacity."""
    arena = _ARENAS.get(group)
    if arena is None:
        arena = _ARENAS[group] = Arena(group, device, capacity or Capacity())
    elif capacity is not None and capacity != arena.capacity:
        remedy = "Give the first engine's."
        raise InputError("capacity", capacity, f"differs from {arena.capacity} of this group's arena", remedy)
    return arena


def _shared(group: dist.ProcessGroup, device: torch.device, size_bytes: int) -> tuple[torch.Tensor, list[int]]:
    """Make zeros that all ranks share, and try them out; return this rank's, and the address of every rank's."""
    symmetric = symmetric_memory()
    # A multicast object outlives the process that fails with it; nothing here needs one.
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    try:
        memory = symmetric.empty(size_bytes, dtype=torch.uint8, device=device)
        handle: Any = symmetric.rendezvous(memory, group)
    except RuntimeError as error:
        raise LoadmasterError(
            f"No symmetric memory over the {group.size()} GPUs of this group: {error} Fused collectives need GPUs of "
            "one host or NVLink domain that can write to each other's memory; the reference executor does not."
        ) from error
    memory.zero_()
    memory[:8].view(torch.int64).fill_(_MARK + group.rank())
    torch.cuda.synchronize(device)
    dist.barrier(group)
    peers = [handle.get_buffer(rank, (size_bytes,), torch.uint8) for rank in range(group.size())]
    seen = [int(peer[:8].view(torch.int64).item()) - _MARK for peer in peers]
    if seen != list(range(group.size())):
        raise LoadmasterError(f"Symmetric memory of ranks 0 to {group.size() - 1} reads as that of ranks {seen}.")
    dist.barrier(group)
    memory[:8].zero_()
    torch.cuda.synchronize(device)
    # A rank's own by its own address: the handle may map it a second time.
    addresses = [peer.data_ptr() for peer in peers]
    addresses[group.rank()] = memory.data_ptr()
    return memory, addresses
