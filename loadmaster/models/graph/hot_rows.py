"""Feature rows that lie on the GPU: the hottest ones, as many as there is room for ([Wu24] chapter 4).

The curve of hits rises and bends down: each row more is asked for less often. So room is best filled from the top.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.graph.problem import FeatureStore, GraphProblem
from loadmaster.models.graph.statistics import HOT_SHARES


def hit_rate(problem: GraphProblem, hot_rows: int) -> float:
    """The share of reads that finds its row on the GPU."""
    store = problem.store
    if store is None:
        return 1.0
    return float(np.interp(hot_rows / store.rows, HOT_SHARES, problem.statistics.hits))


def gather_us(problem: GraphProblem, hot_rows: int) -> float:
    """What a step takes to read the other rows over the host link."""
    store = problem.store
    if store is None:
        return 0.0
    return (1.0 - hit_rate(problem, hot_rows)) * _all_us(store)


def segments(problem: GraphProblem) -> list[tuple[int, float]]:
    """Pieces of the curve, hottest first: (rows, microseconds that each of them saves a step)."""
    store = problem.store
    if store is None:
        return []
    found = []
    hits: Sequence[float] = problem.statistics.hits
    for k in range(1, len(HOT_SHARES)):
        first, last = (round(HOT_SHARES[i] * store.rows) for i in (k - 1, k))
        if last > first:
            found.append((last - first, (hits[k] - hits[k - 1]) * _all_us(store) / (last - first)))
    return found


def as_many_as_fit(problem: GraphProblem, room_bytes: int) -> int:
    """Hot rows that fit into so many bytes."""
    store = problem.store
    return 0 if store is None else min(store.rows, max(0, room_bytes) // store.row_bytes)


def _all_us(store: FeatureStore) -> float:
    return store.reads * store.row_bytes / (store.link_gbps * 1e3)
