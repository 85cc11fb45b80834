"""What a tensor cache asks of a place for tensors: a few calls, which a backend of the user's can answer too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from loadmaster.errors import LoadmasterError


class Transfer(Protocol):
    """A copy that was asked for."""

    def over(self) -> bool:
        """Whether nothing reads or writes for it any more, as far as the host knows. Never waits."""

    def wait(self) -> None:
        """Come after it: what the calling thread does, and queues on its current stream, finds it over or failed."""

    def failure(self) -> LoadmasterError | None:
        """What went wrong, once it is over or was waited for."""


class Stored(Transfer, Protocol):
    """A copy to the backend, and what it left there."""

    def cancel(self) -> bool:
        """Take it back, if it has not begun.

        Returns:
            whether nothing was or will be copied.
        """


@dataclass(frozen=True)
class Counters:
    """What a backend did so far.

    Attributes:
        written_bytes, read_bytes: copied to it and from it.
        write_s, read_s: while at least one such copy ran.
        peak_bytes: of host memory that it held at most.
        notes: what a user should know, by subject.
    """

    written_bytes: int = 0
    read_bytes: int = 0
    write_s: float = 0.0
    read_s: float = 0.0
    peak_bytes: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def rates(done: Counters) -> tuple[float, float] | None:
    """Bytes a second to a backend and from it; what was not tried yet is taken to be as fast. None before both."""
    if done.write_s <= 0:
        return None
    write = done.written_bytes / done.write_s
    return write, done.read_bytes / done.read_s if done.read_s > 0 else write


class Backend(Protocol):
    """A place for tensors. Calls come from one thread at a time, copies may end on others.

    Attributes:
        waits_on_device: whether waiting for a copy costs the host nothing: a stream of the device waits.
    """

    waits_on_device: bool

    def store(self, source: Tensor) -> Stored | None:
        """Copy from what the current stream makes of a tensor; it stays as it is, and alive, until that is over.

        Args:
            source: uint8 [n], contiguous.

        Returns:
            None where there is no room, which is no failure: the tensor stays on the device.
        """

    def load(self, stored: Stored, target: Tensor) -> Transfer:
        """Copy back, after the store.

        Args:
            target: uint8 [n], allocated on the current stream.
        """

    def free(self, stored: Stored) -> None:
        """Forget what was stored; every copy of it is over, or was waited for."""

    def counters(self) -> Counters:
        """What it did so far."""

    def close(self) -> None:
        """Give back memory, files and threads. Whatever is stored is gone."""
