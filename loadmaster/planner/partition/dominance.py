"""States that no best assignment needs: dead ends [Goldstein94].

State s of a variable is dominated by another one, s', where whatever the neighbours do s' costs no more:

    a(s) - a(s') + sum over neighbours of min over their states j of (b(s, j) - b(s', j)) >= 0

Without s there is still a best assignment. What is taken away from one variable may make states of its neighbours
dominated, so they are looked at again. Variables of so many states that the comparison would not fit are left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from loadmaster.solvers.program import FloatArray, IntArray

Pair = tuple[int, int]
# Numbers of one comparison of a variable's states with each other, over the states of a neighbour.
LARGEST_COMPARISON = 1 << 20


def kept_states(unary: Sequence[FloatArray], pairs: Mapping[Pair, FloatArray]) -> list[IntArray]:
    """Find the states of each variable that are not dominated, ascending."""
    kept = [np.arange(len(costs)) for costs in unary]
    near: list[dict[int, FloatArray]] = [{} for _ in unary]
    for (u, v), costs in pairs.items():
        near[u][v] = near[u].get(v, 0) + costs
        near[v][u] = near[v].get(u, 0) + costs.T
    queue = deque(range(len(unary)))
    waiting = set(queue)
    while queue:
        v = queue.popleft()
        waiting.discard(v)
        states = kept[v]
        widest = max((len(kept[other]) for other in near[v]), default=1)
        if len(states) ** 2 * widest > LARGEST_COMPARISON:
            continue
        worse = np.subtract.outer(unary[v][states], unary[v][states])
        with np.errstate(invalid="ignore"):  # where neither is compatible with some neighbour, nothing is dominated
            for other, costs in near[v].items():
                worse += _least_difference(costs[np.ix_(states, kept[other])])
        left = _undominated(worse)
        if len(left) < len(states):
            kept[v] = states[left]
            for other in near[v]:
                if other not in waiting:
                    waiting.add(other)
                    queue.append(other)
    return kept


def _least_difference(costs: FloatArray) -> FloatArray:
    """[s, s'] min over j of costs[s, j] - costs[s', j]; infinite where s is impossible."""
    with np.errstate(invalid="ignore"):
        difference = costs[:, None, :] - costs[None, :, :]
    difference[np.broadcast_to(np.isinf(costs)[:, None, :], difference.shape)] = np.inf
    found: FloatArray = difference.min(axis=2)
    return found


def _undominated(worse: FloatArray) -> list[int]:
    """Take out each state that another one dominates, the last ones first; of equals one stays."""
    left = list(range(len(worse)))
    for s in reversed(range(len(worse))):
        others = [o for o in left if o != s]
        if others and (worse[s, others] >= 0).any():
            left.remove(s)
    return left
