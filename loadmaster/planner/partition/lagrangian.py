"""Plans and a bound under a budget by elimination: memory has a price.

With a price l >= 0 for a byte, on the average over some moments N, an assignment x costs

    c(x) + l (average over n in N of bytes_n(x) - M)

which elimination minimizes exactly. The minimum is at most the cost of any plan that keeps the budget M, so it is a
bound; an x that keeps the budget at every moment is a plan. The price doubles until there is one, and is then halved in
between what was too cheap and what was dear enough. A moment that an x breaks joins N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadmaster.models.partition.choices import Choices
from loadmaster.models.partition.moments import Moment
from loadmaster.planner.partition.elimination import minimize

ROUNDS = 30
# Prices this near to each other come to the same assignments.
_CLOSE = 1e-3


def search(
    choices: Choices,
    moments: list[Moment],
    budget_bytes: int,
    first_price: float,
    taken: Callable[[Sequence[int], float], Moment | None],
    stop: Callable[[], bool],
) -> None:
    """Tell what prices come to.

    Args:
        moments: N, which grows.
        first_price: of a byte.
        taken: is told an assignment and a bound; returns the moment at which the assignment breaks the budget most,
            None where it keeps it.

    Raises:
        TooWideError: tables are too large for elimination.
    """
    low, high, price = 0.0, None, first_price
    known = {(moment.operator, moment.worker) for moment in moments}
    for _ in range(ROUNDS):
        if stop():
            return
        chosen, least = _best(choices, moments, price, stop)
        broken = taken(chosen, least - price * budget_bytes)
        if broken is None:
            high = price
        else:
            low = price
            if (broken.operator, broken.worker) not in known:
                known.add((broken.operator, broken.worker))
                moments.append(broken)
        if high is not None and high - low <= _CLOSE * high:
            return
        price = 2 * price if high is None else (low + high) / 2


def _best(
    choices: Choices, moments: Sequence[Moment], price: float, stop: Callable[[], bool]
) -> tuple[list[int], float]:
    """The best assignment where every byte of an average moment has that price."""
    share = price / len(moments)
    unary, pairs = list(choices.unary), dict(choices.pairs)
    for moment in moments:
        for v, held in moment.shares.items():
            unary[v] = unary[v] + share * held
        for pair, buffer in moment.buffers.items():
            pairs[pair] = pairs[pair] + share * buffer
    return minimize(unary, pairs, cancelled=stop)
