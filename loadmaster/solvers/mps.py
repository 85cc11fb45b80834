"""A program as an MPS file, exactly: every number is written so that it reads back as the same double.

Free format, minimization, columns ``c0, c1, ...``, rows ``r0, r1, ...``. A row with two different finite bounds is
written as two rows (``r3`` and ``r3u``), because not every reader knows the RANGES section. The objective's constant is
left out for the same reason: add ``program.offset`` to what a solver reports.
"""

from __future__ import annotations

import itertools
import math
from typing import TextIO

import numpy as np

from loadmaster.solvers.program import Program

__all__ = ["write_mps"]


def write_mps(program: Program, file: TextIO) -> None:
    """Write the program to a text file."""
    file.write("NAME loadmaster\nROWS\n N cost\n")
    lower, upper = program.row_lower.tolist(), program.row_upper.tolist()
    written = [_row_names(row, low, high) for row, (low, high) in enumerate(zip(lower, upper, strict=True))]
    for names in written:
        file.writelines(f" {sense} {row}\n" for row, sense, _ in names)
    file.write("COLUMNS\n")
    _write_columns(program, written, file)
    file.write("RHS\n")
    for names in written:
        file.writelines(f" RHS {row} {side!r}\n" for row, _, side in names if side)
    file.write("BOUNDS\n")
    for column, (low, high) in enumerate(zip(program.lower.tolist(), program.upper.tolist(), strict=True)):
        file.writelines(_bounds(column, low, high))
    file.write("ENDATA\n")


def _row_names(row: int, low: float, high: float) -> list[tuple[str, str, float]]:
    """Names, senses and right-hand sides of the rows that stand for one row."""
    if low == high:
        return [(f"r{row}", "E", low)]
    names = []
    if low != -math.inf:
        names.append((f"r{row}", "G", low))
    if high != math.inf:
        names.append((f"r{row}u" if names else f"r{row}", "L", high))
    return names


def _write_columns(program: Program, written: list[list[tuple[str, str, float]]], file: TextIO) -> None:
    row = np.repeat(np.arange(program.row_count), np.diff(program.row_start))
    by_column = np.argsort(program.column_index, kind="stable")
    rows, values = row[by_column].tolist(), program.value[by_column].tolist()
    counts = np.bincount(program.column_index, minlength=program.column_count)
    starts = np.concatenate(([0], np.cumsum(counts))).tolist()
    integer, cost = program.integer.tolist(), program.cost.tolist()
    inside = False
    for column, (first, last) in enumerate(itertools.pairwise(starts)):
        if integer[column] != inside:
            inside = integer[column]
            file.write(f" MARKER 'MARKER' '{'INTORG' if inside else 'INTEND'}'\n")
        # Written even where it is zero: a column is declared by its first entry.
        file.write(f" c{column} cost {cost[column]!r}\n")
        for entry in range(first, last):
            file.writelines(f" c{column} {name} {values[entry]!r}\n" for name, _, _ in written[rows[entry]])
    if inside:
        file.write(" MARKER 'MARKER' 'INTEND'\n")


def _bounds(column: int, low: float, high: float) -> list[str]:
    if low == high:
        return [f" FX BND c{column} {low!r}\n"]
    if low == -math.inf and high == math.inf:
        return [f" FR BND c{column}\n"]
    # An integer column without an upper bound is read as binary by some: PL says it, and first, because
    # PuLP resets the lower bound there.
    lines = [f" PL BND c{column}\n" if high == math.inf else f" UP BND c{column} {high!r}\n"]
    lower = f" LO BND c{column} {low!r}\n"
    return [*lines, lower] if low != -math.inf else [f" MI BND c{column}\n", *lines]
