"""Terms of rows of the program of a training step, which several modules write."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadmaster.models.training.columns import Columns, Terms
from loadmaster.solvers.program import RowList


def add_row(rows: RowList, terms: Terms, lower: float = -np.inf, upper: float = np.inf) -> None:
    """Add a row, unless it has no terms."""
    if terms:
        columns, values = zip(*terms, strict=True)
        rows.add(columns, values, lower=lower, upper=upper)


def each_of(columns: Iterable[int], factor: float = 1.0) -> Terms:
    """Terms of columns with the same factor."""
    return [(int(column), factor) for column in columns]


def less(terms: Terms) -> Terms:
    """Terms taken off."""
    return [(column, -value) for column, value in terms]


def phases_us(c: Columns, s: int, factor: float) -> Terms:
    """Time of the phases of a slot, times a factor."""
    a, forward = c.runs.run(s), c.runs.is_forward(s)
    points = c.runs.problem.points(c.runs.layers[a].layers[0])
    times = [p.forward_us if forward else p.backward_us for p in points]
    return [(y, factor * us) for y, us in zip(c.y[a].tolist(), times, strict=True)]
