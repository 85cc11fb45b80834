"""Hot feature rows, which are kept on the GPU: the hottest ones, as many as there is room for ([Wu24] chapter 4).

The curve of hits is concave: each further row is read less often. Room is filled from the hottest row on.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from loadmaster.models.graph.problem import GraphProblem
from loadmaster.models.graph.statistics import HOT_SHARES


def hit_rate(problem: GraphProblem, hot_rows: int) -> float:
    """Share of reads that find their row on the GPU."""
    store = problem.store
    if store is None:
        return 1.0
    return float(np.interp(hot_rows / store.rows, HOT_SHARES, problem.statistics.hits))


def gather_us(problem: GraphProblem, hot_rows: int) -> float:
    """Time in which a step reads the other rows over the host link, us."""
    store = problem.store
    if store is None:
        return 0.0
    return (1.0 - hit_rate(problem, hot_rows)) * (store.reads * store.row_bytes / (store.link_gbps * 1e3))


def segments(problem: GraphProblem) -> list[tuple[int, float]]:
    """Pieces of the curve, hottest first: (rows, microseconds that each of them saves a step)."""
    store = problem.store
    if store is None:
        return []
    places = [share * store.rows for share in HOT_SHARES]
    # Between two of these, every whole number of rows is on one line of the curve.
    edges = sorted({0, store.rows, *map(math.floor, places), *map(math.ceil, places)})
    return [
        (last - first, (gather_us(problem, first) - gather_us(problem, last)) / (last - first))
        for first, last in itertools.pairwise(edges)
    ]


def worth_rows(problem: GraphProblem) -> int:
    """Largest number of hot rows that still saves time: more save nothing."""
    pieces = segments(problem)
    return sum(rows for at, (rows, _) in enumerate(pieces) if any(saved > 0 for _, saved in pieces[at:]))


def as_many_as_fit(problem: GraphProblem, room_bytes: int) -> int:
    """Number of hot rows that fit into so many bytes."""
    store = problem.store
    return 0 if store is None else min(store.rows, max(0, room_bytes) // store.row_bytes)
