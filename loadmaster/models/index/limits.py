"""The budget of an index problem: what is enough for the quickest everywhere, what is needed at least, and between."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from loadmaster.models.index.plan import IndexInfeasibility
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import options
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes

# Shards that an answer without a plan names.
_BLOCKERS = 3


def whole_bytes(problem: IndexProblem) -> int:
    """Bytes that the fullest host needs if every shard gets what serves it quickest."""
    return max(_held(problem, last=True))


def least_by_host(problem: IndexProblem) -> list[int]:
    """Bytes that each host needs if every shard gets what takes least memory: exact, no host does with less."""
    return _held(problem, last=False)


def least_bytes(problem: IndexProblem) -> int:
    """The smallest budget under which there is a plan, where hosts have as much."""
    return max(least_by_host(problem))


def lacking(problem: IndexProblem, budget_bytes: int) -> IndexInfeasibility | None:
    """The host that lacks most, where every shard has what takes least memory; None: all hosts have enough."""
    least = least_by_host(problem)
    hosts = range(len(least))
    short = [least[h] - problem.room_bytes(h, budget_bytes) for h in hosts]
    rooms = [host.memory_bytes for host in problem.hosts]
    own = [h for h, room in enumerate(rooms) if room is not None and least[h] > room]
    worst = max(own or hosts, key=lambda h: short[h])
    if short[worst] <= 0:
        return None
    here = [s for s, shard in enumerate(problem.shards) if shard.host == worst]
    largest = sorted(here, key=lambda s: -options(problem, s)[0].size_bytes)[:_BLOCKERS]
    names = tuple(problem.shards[s].name for s in largest)
    return IndexInfeasibility(least[worst], short[worst], problem.hosts[worst].name, names, not own)


def least_us(problem: IndexProblem) -> float:
    """Lower bound on the time of every plan: each shard at its quickest, on all threads equally where none is given."""
    quickest = [options(problem, s)[-1].time_us for s in range(len(problem.shards))]
    if problem.objective == "sum":
        return sum(quickest)
    by_host, given = [0.0] * len(problem.hosts), defaultdict[tuple[int, int], float](float)
    for shard, took in zip(problem.shards, quickest, strict=True):
        by_host[shard.host] += took
        if shard.thread is not None:
            given[shard.host, shard.thread] += took
    even = [took / host.threads for host, took in zip(problem.hosts, by_host, strict=True)]
    return max(*even, *quickest, *given.values())


def spread(problem: IndexProblem, count: int) -> list[int]:
    """Spread ``count`` budgets evenly from the least to the whole, ascending."""
    return sorted({int(b) for b in np.linspace(least_bytes(problem), whole_bytes(problem), count)})


def _held(problem: IndexProblem, *, last: bool) -> list[int]:
    held = [0] * len(problem.hosts)
    for s, shard in enumerate(problem.shards):
        held[shard.host] += options(problem, s)[-1 if last else 0].size_bytes
    return held


def summary(problem: IndexProblem) -> Summary:
    """Summarize an index problem before anything is planned."""
    whole, least = whole_bytes(problem), least_bytes(problem)
    keys = sum(shard.keys for shard in problem.shards)
    operations = sum(shard.operations.total for shard in problem.shards)
    writes = sum(shard.operations.writes for shard in problem.shards)
    costs = [cost for shard in problem.shards for cost in shard.costs if cost is not None]
    measured = sum(cost.measured for cost in costs)
    rows = [
        ("keys", f"{keys} to begin with"),
        (
            "operations",
            f"{operations:.0f} in the horizon, {100 * writes / operations if operations else 0:.0f} % writes",
        ),
        ("objective", "time of all threads together" if problem.objective == "sum" else "time of the longest thread"),
        ("whole", f"{show_bytes(whole)} ({whole} bytes) on the fullest host, every shard at its quickest"),
        ("least", f"{show_at_least(least)} ({least} bytes): no plan needs less"),
        ("measured", f"{measured} of {len(costs)} costs, the others are predicted"),
    ]
    if problem.longest_pause_us is not None:
        rows.append(("pauses", f"{problem.longest_pause_us:g} us at most"))
    figures = {
        "keys": keys,
        "operations": operations,
        "write_operations": writes,
        "whole_bytes": whole,
        "least_budget_bytes": least,
        "measured_costs": measured,
    }
    return Summary(problem.name, tuple(rows), figures)
