"""Moves that happen as late as they may: the oracle for waits that are missing on a device."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from loadmaster.executor.training.copies import HostMover, Move, Pair


@dataclass(eq=False)
class _Late:
    """A copy that is queued in a stream, after others. It holds no memory of the device."""

    stream: deque[_Late]
    after: Sequence[Any]
    copy: Callable[[], object]
    lock: threading.RLock
    is_over: bool = False

    def wait(self) -> None:
        """Make it, and all before it."""
        with self.lock:
            while not self.is_over:
                first = self.stream[0]
                for one in first.after:
                    one.wait()
                if not first.is_over:
                    self.stream.popleft()
                    first.is_over = True
                    first.copy()

    finish = wait


@dataclass(eq=False)
class LateMover(HostMover):
    """Mover whose copies happen when somebody waits for them, or, with a random generator, at any time before.

    Compute runs at once here, and copies late: as on a device whose link is slow. Memory that is freed or written
    before its copy was waited for shows in the values, or in ``freed``.
    """

    chance: random.Random | None = None
    freed: list[str] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _up: deque[_Late] = field(default_factory=deque)
    _down: deque[_Late] = field(default_factory=deque)

    def mark(self) -> Move:
        """Mark the present."""
        self._sometimes()
        return super().mark()

    def load(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        """Queue copies to the device."""
        each = [(self._weak(target, "load"), source) for target, source in pairs]
        return self._queued(self._up, after, lambda: [self._copy(there(), source) for there, source in each])

    def store(self, pairs: Sequence[Pair], after: Sequence[Move]) -> Move:
        """Queue copies to the host."""
        each = [(target, self._weak(source, "store")) for target, source in pairs]
        return self._queued(self._down, after, lambda: [self._copy(target, there()) for target, there in each])

    def end(self) -> None:
        """Make all copies."""
        for stream in (self._up, self._down):
            while stream:
                stream[-1].wait()

    def _queued(self, stream: deque[_Late], after: Sequence[Move], copy: Callable[[], object]) -> Move:
        late = _Late(stream, after, copy, self._lock)
        with self._lock:
            stream.append(late)
        self._sometimes()
        return late

    def _sometimes(self) -> None:
        if self.chance is None:
            return
        with self._lock:
            for stream in (self._up, self._down):
                if stream and self.chance.random() < 0.3:
                    self.chance.choice(stream).wait()

    @torch.no_grad()
    def _copy(self, target: Tensor | None, source: Tensor | None) -> None:
        if target is not None and source is not None:
            target.copy_(source)

    def _weak(self, tensor: Tensor, what: str) -> Callable[[], Tensor | None]:
        """Hold a tensor weakly; notes where its memory is gone when it is asked for."""
        weak = StorageWeakRef(tensor.untyped_storage())
        dtype, place = tensor.dtype, (tensor.storage_offset(), tensor.size(), tensor.stride())

        def there() -> Tensor | None:
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                self.freed.append(what)
                return None
            return torch.empty(0, dtype=dtype).set_(storage, *place)

        return there
