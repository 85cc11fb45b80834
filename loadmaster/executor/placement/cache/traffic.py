"""Stores and loads of one cache: what is on its way, how much may be, and what went wrong."""

from __future__ import annotations

import time
import weakref
from collections import deque
from dataclasses import dataclass

import torch

from loadmaster.errors import LoadmasterError
from loadmaster.executor.placement.cache.backends.protocol import Backend, Stored
from loadmaster.executor.placement.cache.parts import Part, Remains
from loadmaster.executor.placement.cache.stats import Tally
from loadmaster.executor.placement.cache.tape import Tape
from loadmaster.executor.steps.measure import mark

LATENCY_S = 0.01  # that the window covers: a copy's own, the queue before it, and jitter
LEAST_WINDOW_BYTES = 64 << 20


@dataclass(eq=False)
class _Store:
    """A store that was begun; the part may be gone before it is over."""

    part: weakref.ref[Part]
    stored: Stored
    size_bytes: int

    def holder(self) -> Part | None:
        """Return the part, while it waits for this store."""
        part = self.part()
        return part if part is not None and part.stored is self.stored and part.storing else None


class Traffic:
    """Stores and loads between the device and a backend. All methods are called under the cache's lock.

    At most ``window_bytes`` are on their way, each way; None finds it: as much as the backend moves in ``LATENCY_S``,
    and the last part that was sent, which nobody waits for before there is another one. ``remains`` are what parts left
    behind that nobody needs any more; ``failure`` is that of the first store that failed since it was asked for.
    """

    def __init__(self, backend: Backend, window_bytes: int | None, tally: Tally) -> None:
        self.backend, self._window_bytes, self._tally = backend, window_bytes, tally
        self.remains: deque[Remains] = deque()
        self.failure: LoadmasterError | None = None
        self._flying: deque[_Store] = deque()
        self._flying_bytes = self._last_bytes = 0

    def window_bytes(self, *, writing: bool) -> int:
        """Bytes that are on their way at most, in one direction."""
        if self._window_bytes is not None:
            return self._window_bytes
        done = self.backend.counters()
        moved, taken_s = (done.written_bytes, done.write_s) if writing else (done.read_bytes, done.read_s)
        rate = moved / taken_s if taken_s > 0 else 0.0
        window_bytes = max(LEAST_WINDOW_BYTES, int(rate * LATENCY_S))
        return window_bytes + self._last_bytes if writing else window_bytes

    def send(self, part: Part, tape: Tape) -> None:
        """Store a part; where that cannot be, it stays on the device."""
        assert part.source is not None
        self._last_bytes = part.size_bytes
        begun = mark(part.device) if tape.watch is not None else None
        try:
            part.stored = self.backend.store(part.source)
        except LoadmasterError as error:
            self._failed(part, error)
            return
        if tape.watch is not None and begun is not None:
            tape.watch.waited(begun, mark(part.device))  # host memory was pinned, or copied to at once
        if part.stored is None:
            self._tally.add("kept", part.size_bytes)
            return
        self._flying.append(_Store(weakref.ref(part), part.stored, part.size_bytes))
        self._flying_bytes += part.size_bytes

    def hold_to_window(self, tape: Tape, expected_bytes: int = 0) -> None:
        """Wait for the oldest stores until no more is on its way than a window, and what is expected. On a device its
        stream waits, not the host. The host is often a whole pass ahead: by what it sees, hardly a store is ever
        over."""
        self.land()
        if not self._flying:
            return
        limit_bytes = self.window_bytes(writing=True) + expected_bytes
        while self._flying_bytes > limit_bytes:
            self._come_after(self._flying[0], tape)
            self._flying_bytes -= self._flying.popleft().size_bytes
            self.land()

    def release(self) -> None:
        """Let go of memory that only stores hold, where that costs the host nothing: nobody needs it any more."""
        if self.backend.waits_on_device:
            for store in self._flying:
                if store.holder() is None:
                    self._come_after(store, None)
        self.land()

    def _come_after(self, store: _Store, tape: Tape | None) -> None:
        watch = None if tape is None or tape.begun else tape.watch
        part = store.holder()
        device = part.device if part is not None else None
        begun, begun_s = mark(device) if watch is not None and device is not None else None, time.perf_counter()
        store.stored.wait()
        self._tally.spend("store", time.perf_counter() - begun_s)
        if watch is not None and device is not None and begun is not None:
            watch.waited(begun, mark(device))
        if part is not None:
            self._commit(part)
        for left in self.remains:
            if left.stored is store.stored:
                left.source = None

    def land(self) -> None:
        """Let go of memory whose stores are over, and free in the backend what nobody needs any more."""
        while self._flying:
            part = self._flying[0].holder()
            if not self._flying[0].stored.over():
                break
            if part is not None:
                self._commit(part)
            self._flying_bytes -= self._flying.popleft().size_bytes
        for _ in range(len(self.remains)):
            left = self.remains.popleft()
            if not left.over():
                self.remains.append(left)
            elif left.stored is not None:
                self.backend.free(left.stored)

    def forward(self, part: Part) -> None:
        """Leave a part where it is: the backward pass needs it before its store is over."""
        if not part.wanted:
            self._tally.add("forwarded", part.size_bytes)
            if part.forward():
                self._tally.add("cancelled", part.size_bytes)

    def bring(self, part: Part, tape: Tape) -> None:
        """Start to load a part, and count it as ahead of its use."""
        assert part.stored is not None
        part.target = torch.empty(part.size_bytes, dtype=torch.uint8, device=part.device)
        part.stream = torch.cuda.current_stream(part.device) if part.target.is_cuda else None
        part.load = self.backend.load(part.stored, part.target)
        part.ahead = tape
        tape.ahead_bytes += part.size_bytes
        tape.brought_bytes += part.size_bytes
        self._tally.add("loaded", part.size_bytes)

    def arrive(self, part: Part) -> None:
        """Let the current stream, or the host, wait for a load; raises LoadmasterError if it failed."""
        if part.load is None or part.target is None:
            return
        begun_s = time.perf_counter()
        part.load.wait()
        self._tally.spend("load", time.perf_counter() - begun_s)
        failure = part.load.failure()
        if failure is not None:
            raise failure
        if part.target.is_cuda and (stream := torch.cuda.current_stream(part.device)) != part.stream:
            part.target.record_stream(stream)  # used on another stream than its own
        part.arrived = True

    def abandon(self) -> None:
        """Wait for what has begun, cancel the rest; nothing can be brought back afterwards."""
        while self._flying:
            part = self._flying.popleft().holder()
            if part is not None and part.stored is not None:
                if not part.stored.cancel():
                    part.stored.wait()
                part.wanted = True
                part.commit()
        self._flying_bytes = 0
        self.land()
        for left in self.remains:
            for transfer in (left.stored, left.load):
                if transfer is not None:
                    transfer.wait()

    def _commit(self, part: Part) -> None:
        assert part.stored is not None
        failure, wanted = part.stored.failure(), part.wanted
        part.commit()
        if failure is not None:
            self._failed(part, failure)
        elif not wanted:
            self._tally.add("offloaded", part.size_bytes)

    def _failed(self, part: Part, error: LoadmasterError) -> None:
        self._tally.add("failed", part.size_bytes)
        self.failure = self.failure or error


def closed() -> LoadmasterError:
    """Make the error for tensors that are gone with their backend."""
    return LoadmasterError(
        "the tensor cache was closed, by an error or by close(), while a graph still needed what it had sent away. Run "
        "the forward pass again."
    )
