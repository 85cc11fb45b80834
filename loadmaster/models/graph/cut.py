"""Cut of a traversal into programs of the GPU: by rule, from the widths of its values and the rows of a graph.

Short rows are taken several at a time, each with so many slots for the rows that belong to it: a program works on
[rows, slots] at once. Rows that are longer than a bound are cut into chunks, which are programs of their own: the
program of the longest row ends the kernel. It makes as many steps as the rest of the graph keeps the GPU busy for.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.models.graph.schedule import Tile
from loadmaster.models.graph.spaces import WEIGHT_SPACES, Space

LEAST_NUMBERS = 1024  # that a program has of a value, where rows are short
SLOT_NUMBERS = 8  # of one value that a thread holds: with more there are too few registers for the rest
CUT_NUMBERS = 1 << 15  # of the widest value, in the longest row that is not cut
# Steps of the loop over the longest row that is not cut, on small graphs and on large ones; on large ones enough other
# programs hide it, and cutting costs more than it saves.
FEW_STEPS, MANY_STEPS = 16, 64
BUSY_PROGRAMS = 2048
LEAST_BOUND = 32
LEAST_SLOTS = 2  # of a row, where rows are taken by length
SORTED_NUMBERS = 16  # of the widest value: of shorter rows, more is lost in scattered stores than slots are saved
LEAST_PROGRAMS = 1024  # that keep a GPU busy
CHUNKS = 2048  # into which all rows are cut where there are few
LEAST_CHUNK_ROWS = 256
NARROW_WARPS = 8  # where rows are short: more of them wait for memory at a time


@dataclass(frozen=True)
class Cut:
    """Cut of a traversal on one graph: rows and slots of a program of short rows, slots of a program of a chunk.

    Attributes:
        bound: length of the longest row that is not cut; 0: all are cut, None: none is.
        by_length: whether rows are taken in the order of their lengths.
    """

    rows: int
    slots: int
    chunk_slots: int
    bound: int | None
    by_length: bool
    warps: int


def cut_of(tile: Tile, widest: int, to: Space, over_rows: int, to_rows: int, longest: int) -> Cut:
    """Choose the cut of a traversal by rule.

    Args:
        widest: numbers of the widest value that it reads, makes or stores.
        over_rows, to_rows: that it runs over, and that it stores.
        longest: rows that belong to one row, at the most.
    """
    widest = ceil_power(widest)
    by_length = widest >= SORTED_NUMBERS and to not in WEIGHT_SPACES
    warps = tile.warps if widest >= SORTED_NUMBERS else max(tile.warps, NARROW_WARPS)
    wanted = max(tile.rows, LEAST_NUMBERS // widest)
    slots = floor_power(min(wanted, warps * 32 * SLOT_NUMBERS // widest))
    if to in WEIGHT_SPACES:
        return Cut(1, slots, slots, 0, by_length, warps)
    to_rows = max(1, to_rows)
    chunk_slots = slots
    while slots > 1 and slots * widest > 32 * warps and max(to_rows, over_rows) < LEAST_PROGRAMS * slots:
        slots //= 2
    mean = min(slots, ceil_power(-(-over_rows // to_rows)))
    each = mean
    if by_length:
        # Rows of similar length need no more slots than keep enough programs busy.
        each = min(mean, max(LEAST_SLOTS, mean // 4))
        while each < mean and to_rows * each < LEAST_PROGRAMS * slots:
            each *= 2
    # Steps that the program of the longest row may make.
    steps = floor_power(min(MANY_STEPS, max(FEW_STEPS, over_rows // (slots * BUSY_PROGRAMS))))
    bound = _bound(widest, each, steps)
    return Cut(slots // each, each, chunk_slots, bound if longest > bound else None, by_length, warps)


def _bound(widest: int, slots: int, steps: int) -> int:
    return max(LEAST_BOUND, min(2048, CUT_NUMBERS // widest, steps * slots))


def chunk_rows(over_rows: int) -> int:
    """Rows of a chunk where all edges belong to few rows, as in a weight's gradient."""
    return max(LEAST_CHUNK_ROWS, -(-over_rows // CHUNKS))


def ceil_power(count: int) -> int:
    """Smallest power of two that is not less than the count."""
    return 1 << max(0, count - 1).bit_length()


def floor_power(count: int) -> int:
    """Largest power of two that is not more than the count; 1 for counts below 1."""
    return 1 << (max(1, count).bit_length() - 1)
