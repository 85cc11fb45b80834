"""A piece of work for a process of its own, and what can become of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import IO, Any

__all__ = ["BrokenWorkError", "Work"]


@dataclass(frozen=True)
class Work:
    """A function to call in another process; what it returns, or raises, comes back.

    Attributes:
        function: ``module:name``; it is given the file, if there is one, the arguments, and then the buffers.
        longest_s: work that takes longer is ended.
        arguments: small, for they are pickled.
        buffers: bytes that go as they are: pickled with the rest they would be copied, each time.
        file: to write to, open here: the other process writes by a descriptor of its own, ``largest_file_bytes`` at
            most.
    """

    function: str
    longest_s: float
    arguments: tuple[Any, ...] = ()
    buffers: tuple[bytes, ...] = ()
    file: IO[bytes] | None = field(default=None, repr=False)
    largest_file_bytes: int = 0


class BrokenWorkError(Exception):
    """A process that gave no answer; ``by_chance``: another process may well give one."""

    def __init__(self, reason: str, *, by_chance: bool) -> None:
        super().__init__(reason)
        self.by_chance = by_chance
