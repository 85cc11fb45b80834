"""The memory that request bodies share, so that many of them at a time do not end the server."""

from __future__ import annotations

import threading

__all__ = ["NO_ROOM", "NO_ROOM_RETRY_AFTER_S", "BodyMemory", "Held"]

NO_ROOM = "Other bodies take all the memory that there is for them. Send it again later."
# Until a large body is answered.
NO_ROOM_RETRY_AFTER_S = "5"

# What a body takes while it is read, as measured: its pieces, the whole, its text; and each value in it.
_COPIES, _VALUE_BYTES = 3, 48


class BodyMemory:
    """Counts what all requests hold that are not answered yet, ``max_bytes`` together; one alone may take more. Safe to
    use from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._all_bytes = max_bytes, 0
        self._lock = threading.Lock()

    def hold(self) -> Held:
        """The share of a new request, which holds nothing yet."""
        return Held(self)

    def add(self, more_bytes: int, own_bytes: int) -> bool:
        """Count more (or less) for a request that then holds ``own_bytes``; returns whether there is room for it."""
        with self._lock:
            self._all_bytes += more_bytes
            return self._all_bytes <= max(own_bytes, self._max_bytes)


class Held:
    """The share of the memory for bodies that one request holds."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._own_bytes = 0

    def fits(self, size_bytes: int, json_values: int) -> bool:
        """Hold so much JSON, in place of what was held; returns whether there is room. It is held even if not."""
        before, self._own_bytes = self._own_bytes, _COPIES * size_bytes + _VALUE_BYTES * json_values
        return self._memory.add(self._own_bytes - before, self._own_bytes)

    def give_back(self) -> None:
        """Hold nothing: the request is answered."""
        self.fits(0, 0)
