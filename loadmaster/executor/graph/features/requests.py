"""Counts of the 128-byte lines that a GPU asks the host for when it gathers rows, and what alignment saves.

A warp asks once for every line that its lanes touch. Where each lane takes one element of the result in order, warps
begin anywhere in a row, and a line that two warps touch is asked for twice. Where a row is read from the line that it
begins in, each of its lines is asked for once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 128
WARP_LANES = 32


def line_requests(
    index: NDArray[np.integer[Any]],
    row_elements: int,
    *,
    aligned: bool,
    line_elements: int = 32,
    warp_lanes: int = WARP_LANES,
) -> int:
    """Count the requests for lines of all rows that are gathered.

    Args:
        index: int [rows], which rows of a table whose first row begins with a line.
        row_elements: elements of a row, at least one.
        aligned: whether warps begin where lines begin; else they follow the result, an element each lane.
        line_elements: elements of a line; 32 of float32.
        warp_lanes: lanes of a warp.
    """
    start = index.astype(np.int64) * row_elements
    line_cuts = (start + row_elements - 1) // line_elements - start // line_elements
    if aligned:
        return int(np.sum(line_cuts + 1))
    first = np.arange(index.size, dtype=np.int64) * row_elements
    warp_cuts = (first + row_elements - 1) // warp_lanes - first // warp_lanes
    # A piece is what one warp reads of one line: a row is cut where either ends, once where both do.
    step = np.lcm(line_elements, warp_lanes)
    both = np.zeros_like(start)
    for cut in range(0, int(step), warp_lanes):
        # Positions p of the row with first + p = cut (mod step) at a warp's end and start + p at a line's.
        offset = (cut - first) % step
        at_line = (start + offset) % line_elements == 0
        count = (row_elements - 1 - offset) // step + 1 - (offset == 0)
        both += np.where(at_line, np.maximum(count, 0), 0)
    return int(np.sum(1 + line_cuts + warp_cuts - both))


def least_requests(rows: int, row_elements: int, line_elements: int = 32) -> float:
    """Lines that so many rows would fill without gaps: no way to read them asks for fewer."""
    return rows * row_elements / line_elements
