"""Rates and room of a disk, measured through the files that hold optimizer state."""

from __future__ import annotations

import logging
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from os import PathLike

from loadmaster.executor.training.state_files import ChunkedFile
from loadmaster.models.placement.problem import Tier

logger = logging.getLogger(__name__)

SAMPLE_BYTES = 1 << 30
_SAMPLES = 3
# Of the free room: as much again is for copies, when state is saved, and for what else goes there.
DISK_SHARE = 0.4


def measured_disk(folder: str | PathLike[str]) -> Tier:
    """Measure the disk of a folder, one direction at a time, as states are written and read. InputError: there is no
    such folder, or it has no room for a sample."""
    free = shutil.disk_usage(folder).free
    file = ChunkedFile(folder)
    try:
        size = min(SAMPLE_BYTES, max(int(DISK_SHARE * free), 1))
        buffer, place = file.buffer(size), file.place(size)
        buffer.fill_(1)
        to_gbps, from_gbps = (_gbps(size, partial(move, place, buffer)) for move in (file.write, file.read))
        if not file.direct:
            logger.warning("disk: %s goes through the page cache: it may be slower than it was measured", folder)
    finally:
        file.close()
    return Tier("disk", to_gbps, from_gbps, capacity_bytes=int(DISK_SHARE * free))


def _gbps(size_bytes: int, move: Callable[[], None]) -> float:
    times = []
    for _ in range(_SAMPLES):
        began = time.perf_counter()
        move()
        times.append(time.perf_counter() - began)
    return size_bytes / statistics.median(times) / 1e9
