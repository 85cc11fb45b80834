"""Backends whose copies begin, end and fail when a test says so.

They hold none of the memory that they copy, as a device's copy engine does not: they know addresses. Memory that dies
before a copy is over is an error that the test cannot miss.
"""

from __future__ import annotations

import ctypes
import weakref

import torch

from loadmaster.errors import LoadmasterError
from loadmaster.executor.placement.cache.backends.protocol import Counters


class Transfer:
    """A copy of memory that others hold."""

    def __init__(self, memory: torch.Tensor, backend: Held) -> None:
        self.size_bytes, self.address, self.backend = memory.numel(), memory.data_ptr(), backend
        self.storage_address = memory.untyped_storage().data_ptr()
        weakref.finalize(memory.untyped_storage(), self.died).atexit = False

    def over(self) -> bool:
        raise NotImplementedError

    def died(self) -> None:
        """The memory is gone."""
        if not self.over():
            self.backend.died_early += 1


class Copy(Transfer):
    """A store that waits to be let go."""

    def __init__(self, source: torch.Tensor, backend: Held) -> None:
        self.bytes: bytes | None = None
        self.cancelled = False
        self.error: LoadmasterError | None = None
        super().__init__(source, backend)

    def over(self) -> bool:
        return self.cancelled or self.error is not None or self.bytes is not None

    def wait(self) -> None:
        self.backend.waits += 1
        self.finish()

    def finish(self) -> None:
        if not self.over():
            assert not self.backend.died_early
            self.error = self.backend.error
            if self.error is None:
                self.bytes = ctypes.string_at(self.address, self.size_bytes)

    def failure(self) -> LoadmasterError | None:
        return self.error

    def cancel(self) -> bool:
        if not self.over() and not self.backend.runs:
            self.cancelled = True
        return self.cancelled


class Load(Transfer):
    """Fills its target when it is waited for, so that nobody reads it before."""

    def __init__(self, copy: Copy, target: torch.Tensor, backend: Held) -> None:
        self.copy, self.done = copy, False
        target.fill_(0xAB)
        super().__init__(target, backend)

    def over(self) -> bool:
        return self.done

    def wait(self) -> None:
        assert self.copy.bytes is not None and not self.backend.died_early
        if not self.done:
            ctypes.memmove(self.address, self.copy.bytes, self.size_bytes)
            self.done = True

    def failure(self) -> LoadmasterError | None:
        return None


class Held:
    """Stores stay where they are until somebody waits, or ``finish`` is called.

    Attributes:
        error: what stores end in.
        room: stores that there is room for.
        died_early: stretches of memory that died before their copy was over.
    """

    def __init__(self, *, runs: bool = False, room: int = 1 << 30, waits_on_device: bool = False) -> None:
        self.runs, self.room, self.waits_on_device = runs, room, waits_on_device
        self.error: LoadmasterError | None = None
        self.stores: list[Copy] = []
        self.loads: list[Load] = []
        self.freed: list[Copy] = []
        self.waits = self.died_early = 0

    def store(self, source: torch.Tensor) -> Copy | None:
        if len(self.stores) >= self.room:
            return None
        self.stores.append(Copy(source, self))
        return self.stores[-1]

    def load(self, stored: Copy, target: torch.Tensor) -> Load:
        assert stored not in self.freed
        self.loads.append(Load(stored, target, self))
        return self.loads[-1]

    def free(self, stored: Copy) -> None:
        assert stored.over() and stored not in self.freed
        self.freed.append(stored)

    def counters(self) -> Counters:
        return Counters()

    def close(self) -> None:
        raise AssertionError("whoever made it closes it")

    def finish(self) -> None:
        for copy in self.stores:
            if not copy.over():
                copy.finish()
