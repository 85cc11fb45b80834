"""Model of a kernel's reads: bytes from memory and bytes through the cache.

A row is read once for each row that the kernel runs over; or once for each row that it stores, if it is the same for
all rows that belong to that one. Every different row comes from memory once. When it is read again, it comes from the
cache with the probability that the cache holds it: the part of all rows that fits. Rows out of order come in pairs of
sectors, 64 bytes. Three things make reads cheaper:

*Order.* Edges are sorted by relation, then by target; pairs by relation; nodes by type. Rows that are read in the order
of memory come once, whole.

*Groups.* A traversal takes the edges of a row one after the other, in the same order. A row that consecutive edges
share is read once: by the edges of one relation, where they are those of one target.

*Small values* are still in the cache from the previous kernel.
"""

from __future__ import annotations

import math

from loadmaster.models.graph.inline import Need, base, rows_class
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Kernel
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space, is_coarser, join
from loadmaster.models.graph.statistics import GraphStatistics

SECTOR_BYTES = 64
INDEX_BYTES = 4
# A value that is smaller than this part of the cache may still be there from the previous kernel.
RECENT_SHARE = 0.25


class Reading:
    """Reads of a program's kernels on a graph."""

    def __init__(self, program: Program, statistics: GraphStatistics, element_bytes: int, l2_bytes: int) -> None:
        self.program, self.statistics = program, statistics
        self.element_bytes, self.l2_bytes = element_bytes, l2_bytes

    def bytes(self, kernel: Kernel, need: Need) -> tuple[float, float]:
        """Count the bytes that a kernel reads from memory, and through the cache."""
        over, to = kernel.over or kernel.rows, kernel.rows
        dram = cache = 0.0
        maps: set[tuple[Space, Space]] = set()
        weights = self._weights(kernel)
        for n, seen in need.seen:
            if n in kernel.stores:
                continue
            # Once for each row that is stored, however many are run over.
            at = to if kernel.over is not None and (seen == to or is_coarser(seen, to)) else over
            if n not in weights and not _is_same(seen, at):
                maps.add((seen, at))
            found = self._value(n, seen, at, None if at == to else _grouped_by(kernel))
            dram, cache = dram + found[0], cache + (0.0 if n in weights else found[1])
        indices = sum(self.statistics.rows(at) for seen, at in maps if seen != "one")
        if kernel.over is not None:
            # Offsets of the rows that belong to each row, and their numbers.
            indices += self.statistics.rows(to)
            indices += self.statistics.rows(over) if _grouped_by(kernel) is not None else 0
        return dram + INDEX_BYTES * indices, cache + INDEX_BYTES * indices

    def cold(self, value_bytes: float) -> float:
        """Part of a value that comes from memory, or goes there, when it is read or stored."""
        return min(1.0, value_bytes / (RECENT_SHARE * self.l2_bytes)) if self.l2_bytes else 1.0

    def _weights(self, kernel: Kernel) -> set[int]:
        """Weights of a kernel's products, whose reads through the cache are counted by tile."""
        values = self.program.values
        return {base(self.program, values[n].inputs[1]) for n in kernel.stores if values[n].op == "linear"}

    def _value(self, n: int, seen: Space, at: Space, grouped_by: Space | None) -> tuple[float, float]:
        """Count the bytes of reading a value for the rows of a space: from memory, and through the cache. The rows are
        grouped by a space; None: they are taken in the order of memory."""
        typed = self.program.types[n]
        rows, row_bytes = self.statistics.rows(typed.space), typed.numbers * self.element_bytes
        whole = float(rows * row_bytes)
        cold = self.cold(whole)
        if grouped_by is None and are_in_order(seen, at):
            return cold * whole, whole
        reads = self.statistics.rows(at)
        if at == "edge":
            reads = self.statistics.rows(join((grouped_by or "target_pair", seen)))
        row_bytes = SECTOR_BYTES * math.ceil(row_bytes / SECTOR_BYTES)
        # Narrow rows share sectors, as long as the cache holds them.
        first = min(float(min(rows, reads) * row_bytes), whole)
        again = max(0.0, reads * row_bytes - first)
        is_shared = grouped_by is not None and reads < self.statistics.rows(at)
        missed = 0.0 if is_shared else 1.0 - min(1.0, self.l2_bytes / whole)
        return cold * first + missed * again, first + again


def come_as_they_lie(over: Space, to: Space) -> bool:
    """Return whether the rows that belong to each row of a space are contiguous in memory."""
    return to in WEIGHT_SPACES or (over, to) == ("edge", "target_pair")


def are_in_order(seen: Space, at: Space) -> bool:
    """Return whether rows taken in the order of memory read the rows of a space in order."""
    return _is_same(seen, at) or seen in WEIGHT_SPACES or (at, seen) == ("edge", "target_pair")


def _grouped_by(kernel: Kernel) -> Space | None:
    """Space by which a kernel groups the rows that it runs over; None: it takes them in the order of memory."""
    if kernel.template != "traverse" or kernel.over is None or come_as_they_lie(kernel.over, kernel.rows):
        return None
    return kernel.rows


def _is_same(seen: Space, at: Space) -> bool:
    return seen == at or (rows_class(seen) == rows_class(at) == "node")
