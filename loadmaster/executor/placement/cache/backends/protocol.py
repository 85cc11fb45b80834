"""Interface of a tensor cache's backends: a few calls, which an object of the user's can answer too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from loadmaster.errors import LoadmasterError


class Transfer(Protocol):
    """A copy that was asked for, to a backend or from it."""

    def over(self) -> bool:
        """Return whether nothing reads or writes for the copy any more, as far as the host knows. Never waits."""

    def wait(self) -> None:
        """Wait for the copy: what this thread then does, or queues on its current stream, finds it over or failed."""

    def failure(self) -> LoadmasterError | None:
        """Return what went wrong with the copy, once it is over or was waited for; None where nothing did."""


class Stored(Transfer, Protocol):
    """A copy to the backend, and what it left there."""

    def cancel(self) -> bool:
        """Cancel the copy, if it has not begun; return whether nothing was or will be copied."""


@dataclass(frozen=True)
class Counters:
    """Figures of a backend: bytes written to it and read from it, seconds while at least one such copy ran, host memory
    that it held at most, and notes for the user, by subject."""

    written_bytes: int = 0
    read_bytes: int = 0
    write_s: float = 0.0
    read_s: float = 0.0
    peak_bytes: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def rates(done: Counters) -> tuple[float, float] | None:
    """Bytes a second to a backend and from it; None before the first store, equal before the first load."""
    if done.write_s <= 0:
        return None
    write = done.written_bytes / done.write_s
    return write, done.read_bytes / done.read_s if done.read_s > 0 else write


class Backend(Protocol):
    """A place for tensors. Calls come from one thread at a time, copies may end on others. ``waits_on_device``: waiting
    for a copy costs the host nothing, because a stream of the device waits."""

    waits_on_device: bool

    def store(self, source: Tensor) -> Stored | None:
        """Copy a tensor, uint8 [n] and contiguous, once the current stream has made it; it stays as it is, and alive,
        until the copy is over. Return None where there is no room, which is no failure: the tensor stays on the device.
        """

    def load(self, stored: Stored, target: Tensor) -> Transfer:
        """Copy a stored tensor back, after its store, to ``target``: uint8 [n], allocated on the current stream."""

    def free(self, stored: Stored) -> None:
        """Forget what was stored; every copy of it is over, or was waited for."""

    def counters(self) -> Counters:
        """Return the figures of what the backend did so far."""

    def close(self) -> None:
        """Give back memory, files and threads. Whatever is stored is gone."""
