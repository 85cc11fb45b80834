"""Minimum of a sum of pairwise costs, and a bound: exact where tables are narrow, else as near as messages come.

States that no best assignment needs are left out first (:mod:`.dominance`). Where tables are too wide to eliminate
variables then (:mod:`.elimination`), messages (:mod:`.messages`) tell an assignment, a bound, and what any assignment
costs at least that has a certain state. States that cost more than the assignment in hand are left out, too, and tables
are narrower. Where they are still too wide, only states that cost at most so much more than the bound are kept: what
elimination finds among them is an assignment, and any with another state costs at least that much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loadmaster.planner.partition.dominance import kept_states
from loadmaster.planner.partition.elimination import LARGEST_TABLE, Elimination, Pair, TooWideError
from loadmaster.planner.partition.messages import ROUNDING, Reading, passed, supported
from loadmaster.solvers.program import FloatArray, IntArray

# Of what is between bound and assignment, the part by which states may cost more that are kept: from try to try.
_NARROWER, _TRIES = 0.25, 4
# Numbers of one table, among states that are left.
_LARGEST_LATER = 2_000_000


def minimize(
    unary: Sequence[FloatArray],
    pairs: Mapping[Pair, FloatArray],
    *,
    largest_table: int = LARGEST_TABLE,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[list[int], float]:
    """Find a good assignment and a bound: its own cost where it is the best; infinite where none is possible.

    Args:
        unary, pairs: [variables][states], and (variable, variable) -> [states, states].
        largest_table: beyond which messages are passed.
        stop: ends the search with what is known, after one round of messages at the least.
    """
    kept = kept_states(unary, pairs)
    unary, pairs = _among(kept, unary, pairs)
    try:
        found = Elimination(unary, pairs, largest_table=largest_table, stop=stop)
        chosen, bound = found.best, found.optimum
    except TooWideError:
        chosen, bound = _by_messages(unary, pairs, min(largest_table, _LARGEST_LATER), stop)
    return [int(k[x]) for k, x in zip(kept, chosen, strict=True)], bound


def _by_messages(
    unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray], largest_table: int, stop: Callable[[], bool]
) -> tuple[list[int], float]:
    possible = supported(unary, pairs)
    if possible is None:
        return [0] * len(unary), np.inf
    kept = [np.flatnonzero(np.isfinite(costs)) for costs in possible]
    unary, pairs = _among(kept, unary, pairs)
    reading = passed(unary, pairs, stop)
    chosen, bound = _narrowed(unary, pairs, reading, largest_table, stop)
    return [int(k[x]) for k, x in zip(kept, chosen, strict=True)], bound


def _narrowed(
    unary: Sequence[FloatArray],
    pairs: Mapping[Pair, FloatArray],
    reading: Reading,
    largest_table: int,
    stop: Callable[[], bool],
) -> tuple[list[int], float]:
    """Eliminate among states that may be in a better assignment than the one that was read off."""
    more = min(reading.cost, 2 * abs(reading.bound) + 1) - reading.bound
    for _ in range(_TRIES):
        limit = reading.bound + more
        kept = [np.flatnonzero(least <= limit) for least in reading.least]
        if more <= ROUNDING * abs(reading.bound) or stop():
            break
        try:
            found = Elimination(*_among(kept, unary, pairs), largest_table=largest_table, stop=stop)
        except TooWideError:
            more *= _NARROWER
            continue
        if found.optimum < reading.cost:
            return [int(k[x]) for k, x in zip(kept, found.best, strict=True)], min(found.optimum, limit)
        return reading.chosen, max(reading.bound, min(reading.cost, limit))
    return reading.chosen, reading.bound


def _among(
    kept: Sequence[IntArray], unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray]
) -> tuple[list[FloatArray], dict[Pair, FloatArray]]:
    """Select the costs among states that are kept."""
    own = [costs[k] for costs, k in zip(unary, kept, strict=True)]
    return own, {(u, v): costs[np.ix_(kept[u], kept[v])] for (u, v), costs in pairs.items()}
