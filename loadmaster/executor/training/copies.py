"""Moves between a device and host memory: on CUDA one stream for each direction, elsewhere at once.

Memory on the device belongs to the compute stream. A move starts after a mark of that stream, and whoever reads or
frees the memory lets the compute stream wait for the move first, so that nothing needs ``record_stream``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from loadmaster.errors import InputError
from loadmaster.executor.steps.pinned import HostPool

# Parts of a packed buffer begin at multiples of this: what kernels of every library expect.
ALIGNMENT_BYTES = 256

# Where a tensor moves to, and the tensor.
Pair = tuple[Tensor, Tensor]


class Move(Protocol):
    """Point in a stream's work: the end of moves, or a mark of the compute stream."""

    def wait(self) -> None:
        """Let the compute stream wait for it."""

    def finish(self) -> None:
        """Let this thread wait for it."""


class Mover(Protocol):
    """Maker of buffers, and of moves between them."""

    device: torch.device

    def host_buffer(self, size_bytes: int) -> Tensor:
        """Allocate bytes of host memory, uint8 [size_bytes]."""

    def mark(self) -> Move:
        """Mark the present end of the compute stream."""

    def load(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        """Move tensors to the device, after all of these."""

    def store(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        """Move tensors to the host, after all of these."""


class _Over:
    """Move that is over."""

    def wait(self) -> None:
        return

    def finish(self) -> None:
        return


class HostMover:
    """Moves within host memory, over on return: for a model on the CPU."""

    device = torch.device("cpu")

    def host_buffer(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def mark(self) -> Move:
        return _Over()

    def load(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        for target, source in pairs:
            target.copy_(source)
        return _Over()

    store = load


class _CudaMove:
    """Event after a move."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self.event = device, torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
        self.event.record(stream)

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self.event)

    def finish(self) -> None:
        self.event.synchronize()  # type: ignore[no-untyped-call, unused-ignore]


class CudaMover:
    """Moves to and from pinned memory, each direction on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._pool = device, HostPool()
        self._up = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        self._down = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]

    def host_buffer(self, size_bytes: int) -> Tensor:
        try:
            return self._pool.take(size_bytes)
        except InputError as error:
            problem = f"cannot be pinned: {error.__cause__ or error.problem}".splitlines()[0]
            remedy = "Give a larger budget_bytes, so that less is on the host, or lock more memory (ulimit -l)."
            raise InputError("host memory", error.value, problem, remedy) from error

    def mark(self) -> Move:
        return _CudaMove(self.device, torch.cuda.current_stream(self.device))

    def load(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        return self._copy(self._up, pairs, after)

    def store(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        return self._copy(self._down, pairs, after)

    def _copy(self, stream: torch.cuda.Stream, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        with torch.cuda.stream(stream):
            for move in after:
                move.wait()
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            return _CudaMove(self.device, stream)


def mover_of(device: torch.device) -> Mover:
    """Choose the way to move for a device."""
    return CudaMover(device) if device.type == "cuda" else HostMover()


class Packing:
    """Layout of several tensors in one buffer of bytes, in given formats."""

    def __init__(self, like: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> None:
        self.dtypes = tuple(dtypes)
        self._parts: list[tuple[int, int, torch.dtype, torch.Size, tuple[int, ...]]] = []
        self.size_bytes = 0
        for tensor, dtype in zip(like, dtypes, strict=True):
            length = tensor.numel() * dtype.itemsize
            # Without holes, in the tensor's own order of dimensions: channels last stays so.
            strides = torch.empty_like(tensor, device="meta").stride()
            self._parts.append((self.size_bytes, length, dtype, tensor.shape, strides))
            self.size_bytes += -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The tensors in a buffer, uint8 [size_bytes]."""
        return [
            buffer[start : start + length].view(dtype).as_strided(shape, strides)
            for start, length, dtype, shape, strides in self._parts
        ]
