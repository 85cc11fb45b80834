"""Lagrangian relaxation of the budget: memory has a price, and elimination finds plans and a bound.

With a price l >= 0 for a byte, on the average over some moments N, an assignment x costs

    c(x) + l (average over n in N of bytes_n(x) - M)

which :mod:`.pairwise` minimizes. The minimum is at most the cost of any plan that keeps the budget M, so it is a
bound; an x that keeps the budget at every moment is a plan. The price doubles until there is one, and is then halved in
between what was too cheap and what was dear enough. A moment that an x breaks joins N. At the price of the best bound,
all x that cost less than the plan in hand are looked at in the end, where they are not too many (:mod:`.ranking`).

Without costs, where a price is all there is, the minimum is what some moment takes at least, whatever the plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from loadmaster.models.partition.choices import Choices
from loadmaster.models.partition.moments import Moment
from loadmaster.planner.partition.elimination import Elimination, TooWideError
from loadmaster.planner.partition.messages import ROUNDING
from loadmaster.planner.partition.pairwise import minimize
from loadmaster.planner.partition.ranking import ranked
from loadmaster.solvers.program import FloatArray

ROUNDS = 30
# Moments that are averaged to find what memory is needed; assignments that are looked at in order, then and otherwise.
LEAST_ROUNDS, LEAST_RANKED, MOST_RANKED = 10, 100, 1000
# Tables of rankings; beyond it gaps are too large to be closed so.
_LARGEST_TABLE = 2_000_000
# Prices this near to each other come to the same assignments.
_CLOSE = 1e-3


Costs = tuple[list[FloatArray], dict[tuple[int, int], FloatArray]]


def search(
    choices: Choices,
    moments: list[Moment],
    budget_bytes: int,
    first_price: float,
    take: Callable[[Sequence[int]], Moment | None],
    prove: Callable[[float], None],
    stop: Callable[[], bool],
) -> None:
    """Search prices of memory; ``take`` and ``prove`` are told what they find.

    Args:
        moments: N, which grows.
        first_price: of a byte.
        take: is told an assignment; returns the moment at which it breaks the budget most, None where it keeps it.
        prove: is told a bound on the cost of all plans but those that were taken.
    """
    low, high, price = 0.0, None, first_price
    best_bound, best, best_price = -math.inf, _priced(choices, moments, 0.0), 0.0

    def bound_at(price: float, least: float) -> float:
        paid = price * budget_bytes
        if math.isinf(least):
            return least
        return least - paid - ROUNDING * (abs(least) + paid)

    for _ in range(ROUNDS):
        if stop():
            return
        costs = _priced(choices, moments, price)
        chosen, least = minimize(*costs, stop=stop)
        bound = bound_at(price, least)
        if bound > best_bound:
            best_bound, best, best_price = bound, costs, price
        # What was read off messages may be impossible: it tells nothing of prices.
        broken = take(chosen) if math.isfinite(choices.cost(chosen)) else moments[-1]
        prove(bound)
        if broken is None:
            high = price
        else:
            low = price
            join(moments, broken)
        if high is not None and high - low <= _CLOSE * high:
            break
        price = 2 * price if high is None else (low + high) / 2
    for chosen, cost in _in_order(*best, stop):
        if stop():
            return
        prove(bound_at(best_price, cost))
        if all(moment.bytes_of(chosen) <= budget_bytes * (1 + ROUNDING) for moment in moments):
            broken = take(chosen)
            if broken is not None:
                join(moments, broken)


def least_bytes(
    choices: Choices,
    moments: list[Moment],
    take: Callable[[Sequence[int]], Moment | None],
    prove: Callable[[float, Sequence[Moment]], None],
    stop: Callable[[], bool],
) -> None:
    """Search the least budget of any plan, over ``moments`` as above.

    Args:
        take: is told an assignment; returns the moment at which it takes most, None where it is not a plan.
        prove: is told bytes that every plan takes at one of some moments, except those that were taken.
    """
    free = _free(choices)
    for _ in range(LEAST_ROUNDS):
        if stop():
            return
        chosen, least = minimize(*_priced(free, moments, 1.0), stop=stop)
        fullest = take(chosen)
        prove(least * (1 - ROUNDING), moments)
        if fullest is None or not join(moments, fullest):
            break
    for chosen, least in _in_order(*_priced(free, moments, 1.0), stop, LEAST_RANKED):
        if stop():
            return
        prove(least * (1 - ROUNDING), moments)
        take(chosen)


def _free(choices: Choices) -> Choices:
    """Return the choices, at no cost where they are possible."""
    pairs = {pair: np.where(np.isfinite(costs), 0.0, np.inf) for pair, costs in choices.pairs.items()}
    return replace(choices, unary=[np.zeros(len(costs)) for costs in choices.unary], pairs=pairs)


def join(moments: list[Moment], moment: Moment) -> bool:
    """Add a moment; return whether it is a new one."""
    is_new = all((m.operator, m.worker) != (moment.operator, moment.worker) for m in moments)
    if is_new:
        moments.append(moment)
    return is_new


def _in_order(
    unary: Sequence[FloatArray],
    pairs: Mapping[tuple[int, int], FloatArray],
    stop: Callable[[], bool],
    most: int = MOST_RANKED,
) -> Iterator[tuple[list[int], float]]:
    """Yield (assignment, what it and all after it cost at least); after the last one an infinite cost. Nothing where
    tables are too wide."""
    try:
        found = Elimination(unary, pairs, largest_table=_LARGEST_TABLE, stop=stop)
    except TooWideError:
        return
    inorder = ranked(found)
    chosen = [0] * len(unary)
    for cost, chosen in itertools.islice(inorder, most):
        yield chosen, cost
    if next(inorder, None) is None:
        yield chosen, math.inf


def _priced(choices: Choices, moments: Sequence[Moment], price: float) -> Costs:
    """Add a price for every byte of an average moment to the costs."""
    share = price / len(moments)
    unary, pairs = list(choices.unary), dict(choices.pairs)
    for moment in moments:
        for v, held in moment.shares.items():
            unary[v] = unary[v] + share * held
        for pair, buffer in moment.buffers.items():
            pairs[pair] = pairs[pair] + share * buffer
    return unary, pairs
