"""Clock of states in files: buffers of host memory that they take turns in, and the disk that fills and empties them.

Updates of states in files run in an order that repeats. With S buffers, the states of the next S updates are in them or
on their way. Once an update has ended, the disk writes its state, then reads the one of the update S places later into
the same buffer, then turns to the next update. So the disk does one thing at a time, in a fixed order, and no write
meets a read of the same buffer or file.

Example: states of two groups take 4 us to write and 3 us to read, their updates 1 us. With one buffer, an update waits
for 7 us after the one before; with two, for 13 us after its own last one: the disk has both to exchange meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from loadmaster.models.placement.problem import Tier


class Exchange(NamedTuple):
    """Exchange of a state that was updated for one that comes next in its buffer: both are numbers of the order."""

    written: int
    read: int
    start_us: float
    between_us: float
    end_us: float


class DiskRing:
    """Times of states in files; ``sizes_bytes`` are theirs, in the order of their updates, which repeats. At time 0 the
    buffers are filled."""

    def __init__(self, disk: Tier, sizes_bytes: Sequence[int], buffers: int) -> None:
        self._write_us = [disk.store_us(size) for size in sizes_bytes]
        self._read_us = [disk.load_us(size) for size in sizes_bytes]
        self._filled, self._buffers = deque(buffers * [0.0]), buffers
        self._next, self._free = 0, 0.0

    @property
    def ready_us(self) -> float:
        """Time at which the state of the next update is in its buffer."""
        return self._filled[0]

    def updated(self, at_us: float) -> Exchange:
        """Exchange the state of the next update, which ends at that time."""
        written, count = self._next, len(self._write_us)
        read = (written + self._buffers) % count
        start = max(at_us, self._free)
        between = start + self._write_us[written]
        self._free = between + self._read_us[read]
        self._filled.popleft()
        self._filled.append(self._free)
        self._next = (written + 1) % count
        return Exchange(written, read, start, between, self._free)
