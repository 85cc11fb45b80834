"""From predictions to measurements: which candidates to run, and the problem with what they came to.

A plan is solved, what it chose and what is nearly as good is run on a part of the trace, and the plan is solved again
with what was measured, until it stays the same ([Shah23], section 6.3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadmaster.models.index.problem import Cost, IndexProblem, Shard
from loadmaster.models.index.serving import serving


def near_ties(problem: IndexProblem, s: int, chosen: int) -> list[int]:
    """Candidates of a shard that were not measured and may be quicker than the chosen one, most promising first.

    A candidate may be quicker where its time by the lower quantiles is less than the chosen one's by the upper ones.
    The chosen one is the first, where it was not measured.
    """
    shard = problem.shards[s]
    limit = _operations_ns(shard, _known(shard, chosen), "upper")
    found = []
    for c in serving(problem, shard):
        cost = _known(shard, c)
        if not cost.measured and (c == chosen or _operations_ns(shard, cost, "lower") < limit):
            found.append((c != chosen, _operations_ns(shard, cost, "expected"), c))
    return [c for _, _, c in sorted(found)]


def with_measured(problem: IndexProblem, costs: Mapping[tuple[int, int], Cost]) -> IndexProblem:
    """The problem with costs by (shard, candidate) in place of those that it had."""
    shards = list(problem.shards)
    for (s, c), cost in costs.items():
        others = shards[s].costs
        shards[s] = replace(shards[s], costs=(*others[:c], replace(cost, measured=True), *others[c + 1 :]))
    return replace(problem, shards=tuple(shards))


def _known(shard: Shard, c: int) -> Cost:
    cost = shard.costs[c]
    assert cost is not None, "refused candidates serve nothing"
    return cost


def _operations_ns(shard: Shard, cost: Cost, quantile: str) -> float:
    done = shard.operations
    counted = ((done.lookups, cost.read_ns), (done.writes, cost.write_ns), (done.scans, cost.scan_ns or cost.read_ns))
    total = 0.0
    for count, figure in counted:
        if figure is not None:
            at: float | None = getattr(figure, quantile)
            total += count * (figure.expected if at is None else at)
    return total
