"""Summary of an index problem before it is planned: shards, operations, and the bytes that it needs at least."""

from __future__ import annotations

from loadmaster.models.index.limits import least_bytes, whole_bytes
from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.summary import Summary
from loadmaster.models.units import show_at_least, show_bytes


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
