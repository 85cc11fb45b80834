"""Changes that pay: the cost of building a shard otherwise, against what each operation saves after it."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.index.plan import Change
from loadmaster.models.index.problem import IndexProblem, Shard
from loadmaster.models.index.serving import operations_us, refusal, serving, size_bytes


def changes(problem: IndexProblem, chosen: Sequence[int], budget_bytes: int) -> list[Change]:
    """Find the built shards that change, and those that stay but would gain in the long run. Candidates are ``chosen``
    by shard; the budget is of each host: what a shard could become fits next to what the others get."""
    free = [problem.room_bytes(h, budget_bytes) for h in range(len(problem.hosts))]
    for shard, candidate in zip(problem.shards, chosen, strict=True):
        free[shard.host] -= size_bytes(shard, candidate)
    found = []
    for s, (shard, candidate) in enumerate(zip(problem.shards, chosen, strict=True)):
        if shard.current is None:
            continue
        made = candidate != shard.current
        to = candidate if made else _quickest(problem, shard, free[shard.host] + size_bytes(shard, candidate))
        if to == shard.current:
            continue
        cost = shard.costs[to]
        assert cost is not None, "refused candidates are not chosen"
        found.append(Change(s, shard.current, to, made, cost.rebuild_us, _pays_after(problem, shard, to)))
    return found


def _quickest(problem: IndexProblem, shard: Shard, room_bytes: int) -> int:
    """The candidate with the least time for the operations alone, of those that fit; the current one where it ties."""
    assert shard.current is not None, "shards without a current configuration are built anew"

    def effort(c: int) -> tuple[float, bool]:
        cost = shard.costs[c]
        assert cost is not None, "refused candidates serve nothing"
        return operations_us(shard, cost), c != shard.current

    return min((c for c in serving(problem, shard) if size_bytes(shard, c) <= room_bytes), key=effort)


def _pays_after(problem: IndexProblem, shard: Shard, to: int) -> float | None:
    assert shard.current is not None, "shards without a current configuration are built anew"
    old, new = shard.costs[shard.current], shard.costs[to]
    if old is None or new is None or refusal(problem, shard, shard.current) is not None:
        return None
    saved_us = operations_us(shard, old) - operations_us(shard, new)
    return shard.operations.total * new.rebuild_us / saved_us if saved_us > 0 else None
