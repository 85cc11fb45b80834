"""Copies of whole storages to host memory and back.

On CUDA each direction has a stream. A copy to the host waits for the earlier work of the compute stream; the device
memory is free for the compute stream once that waits for the copy. A copy back goes into memory of the compute stream,
after its earlier work. A host block is let go of after the compute stream waited for the last copy that used it, and a
new copy waits for the compute stream: so either stream can use it again. On other devices copies are made at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from loadmaster.executor.steps.pinned import HostPool


class Ticket(Protocol):
    """Handle of a copy under way, to wait for it or to ask about it."""

    def wait(self) -> None:
        """Let the compute stream wait for the copy."""

    def over(self) -> bool:
        """Return whether the copy is over."""


class Copies(Protocol):
    """Copies of storages between a device and the host; None for a ticket: the copy is over."""

    def store(self, storage: torch.UntypedStorage) -> tuple[Tensor, Ticket | None]:
        """Copy a storage to the host; return the block that it goes to, and a ticket."""

    def load(self, storage: torch.UntypedStorage, host: Tensor) -> Ticket | None:
        """Copy a block to a storage that has its size again."""


def bytes_in(storage: torch.UntypedStorage) -> Tensor:
    """View a storage as bytes [its size]."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class HostCopies:
    """Copies of storages that are in host memory anyway, over on return: the limit caps an account there."""

    def store(self, storage: torch.UntypedStorage) -> tuple[Tensor, Ticket | None]:
        return bytes_in(storage).clone(), None

    def load(self, storage: torch.UntypedStorage, host: Tensor) -> Ticket | None:
        bytes_in(storage).copy_(host)
        return None


@dataclass(frozen=True)
class CudaTicket:
    """Ticket of a copy on a CUDA stream: the event after it."""

    event: torch.cuda.Event
    device: torch.device

    def wait(self) -> None:
        torch.cuda.current_stream(self.device).wait_event(self.event)

    def over(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]


class CudaCopies:
    """Copies to and from pinned memory on streams of their own, while the device computes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = HostPool()
        self._to, self._from = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def store(self, storage: torch.UntypedStorage) -> tuple[Tensor, Ticket | None]:
        host = self._pool.take(storage.nbytes())
        return host, self._copy(self._to, host, bytes_in(storage))

    def load(self, storage: torch.UntypedStorage, host: Tensor) -> Ticket | None:
        return self._copy(self._from, bytes_in(storage), host)

    def _copy(self, stream: torch.cuda.Stream, target: Tensor, source: Tensor) -> CudaTicket:
        before = torch.cuda.Event()  # type: ignore[no-untyped-call]
        before.record(torch.cuda.current_stream(self.device))
        over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            stream.wait_event(before)
            target.copy_(source, non_blocking=True)
            over.record(stream)
        return CudaTicket(over, self.device)


def copies_of(device: torch.device) -> Copies:
    """Choose the way to copy for a device: on streams for CUDA, at once for others."""
    return CudaCopies(device) if device.type == "cuda" else HostCopies()
