"""Backends whose copies begin, end and fail when a test says so."""

from __future__ import annotations

import torch

from loadmaster.errors import LoadmasterError
from loadmaster.executor.placement.cache.backends.protocol import Counters


class Copy:
    """A store that waits to be let go; with ``runs``, one that has begun and cannot be cancelled."""

    def __init__(self, source: torch.Tensor, backend: Held) -> None:
        self.source, self.backend = source, backend
        self.bytes: torch.Tensor | None = None
        self.cancelled = False
        self.error: LoadmasterError | None = None

    def over(self) -> bool:
        return self.cancelled or self.error is not None or self.bytes is not None

    def wait(self) -> None:
        self.backend.waits += 1
        self.finish()

    def finish(self) -> None:
        if not self.over():
            self.error = self.backend.error
            if self.error is None:
                self.bytes = self.source.clone()

    def failure(self) -> LoadmasterError | None:
        return self.error

    def cancel(self) -> bool:
        if not self.over() and not self.backend.runs:
            self.cancelled = True
        return self.cancelled


class Load:
    """Fills its target when it is waited for, so that nobody reads it before."""

    def __init__(self, copy: Copy, target: torch.Tensor) -> None:
        self.copy, self.target, self.done = copy, target.fill_(0xAB), False

    def over(self) -> bool:
        return self.done

    def wait(self) -> None:
        assert self.copy.bytes is not None
        self.target.copy_(self.copy.bytes)
        self.done = True

    def failure(self) -> LoadmasterError | None:
        return None


class Held:
    """Stores stay where they are until somebody waits, or ``finish`` is called.

    Attributes:
        error: what stores end in.
        room: stores that there is room for.
    """

    def __init__(self, *, runs: bool = False, room: int = 1 << 30) -> None:
        self.runs, self.room = runs, room
        self.error: LoadmasterError | None = None
        self.stores: list[Copy] = []
        self.loads: list[Load] = []
        self.freed: list[Copy] = []
        self.waits = 0

    def store(self, source: torch.Tensor) -> Copy | None:
        if len(self.stores) >= self.room:
            return None
        self.stores.append(Copy(source, self))
        return self.stores[-1]

    def load(self, stored: Copy, target: torch.Tensor) -> Load:
        assert stored not in self.freed
        self.loads.append(Load(stored, target))
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
            copy.finish()
