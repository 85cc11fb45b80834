"""Requests for 128-byte lines over the link, which alignment saves: a model, against a count lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# A warp asks once for every line that its lanes touch. Where each lane takes one element of the result in order, warps
# begin anywhere in a row, and a line that two warps touch is asked for twice. Where a row is read from the line that it
# begins in, as the gather kernel reads it, each of its lines is asked for once.


def line_requests(index, row_elements, *, aligned, line_elements=32, warp_lanes=32):
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


def least_requests(rows, row_elements):
    """Lines that so many rows would fill without gaps: no way to read them asks for fewer."""
    return rows * row_elements / 32


def counted(index, row, line, lanes, *, aligned):
    """Distinct (row of the result, warp, line), one lane at a time."""
    asked = set()
    for position, node in enumerate(index):
        for column in range(row):
            place = node * row + column
            warp = place // line if aligned else (position * row + column) // lanes
            asked.add((position, warp, place // line))
    return len(asked)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(1, 40),
    st.sampled_from([(4, 4), (8, 4), (4, 8), (8, 8)]),
    st.booleans(),
)
def test_requests_are_what_lanes_ask_for(index, row, sizes, aligned):
    line, lanes = sizes
    found = line_requests(np.array(index), row, aligned=aligned, line_elements=line, warp_lanes=lanes)
    assert found == counted(index, row, line, lanes, aligned=aligned)


def test_the_seeds_example_of_eleven_features():
    """Nodes 0, 2, 4 of 11 features, lines and warps of four: node 2 takes seven requests, its four lines when aligned.

    The circular shift of the paper takes five, since its lanes wrap.
    """
    sizes = {"line_elements": 4, "warp_lanes": 4}
    alone = [line_requests(np.array(nodes), 11, aligned=False, **sizes) for nodes in ([0], [0, 2])]
    assert alone[1] - alone[0] == 7
    assert line_requests(np.array([2]), 11, aligned=True, **sizes) == 4


@pytest.mark.parametrize(
    ("row", "naive", "aligned"), [(100, 2.11, 1.28), (343, 2.05, 1.09), (513, 2.03, 1.06), (602, 1.98, 1.05)]
)
def test_alignment_saves_what_the_page_says(row, naive, aligned):
    index = np.random.default_rng(0).integers(0, 1_000_000, 20_000)
    least = least_requests(index.size, row)
    assert line_requests(index, row, aligned=False) / least == pytest.approx(naive, abs=0.02)
    assert line_requests(index, row, aligned=True) / least == pytest.approx(aligned, abs=0.02)


def test_rows_of_whole_lines_need_no_alignment():
    index = np.arange(100)[::-1]
    for row in (32, 64, 128):
        assert line_requests(index, row, aligned=False) == line_requests(index, row, aligned=True)
        assert line_requests(index, row, aligned=True) == least_requests(100, row)
