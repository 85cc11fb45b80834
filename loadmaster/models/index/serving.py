"""Costs of a configuration on a shard: whether it can serve it at all, how long it takes, how much memory. Times are
those expected, because sums of many are planned with them. Memory is its upper quantile, because a budget is a promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.problem import Cost, IndexProblem, Predicted, Shard


def operations_us(shard: Shard, cost: Cost | Predicted) -> float:
    """Processor time of the operations of the horizon."""
    done = shard.operations
    write_ns = 0.0 if cost.write_ns is None else cost.write_ns.expected
    scan_ns = (cost.scan_ns or cost.read_ns).expected
    return (done.lookups * cost.read_ns.expected + done.writes * write_ns + done.scans * scan_ns) / 1e3


def time_us(shard: Shard, candidate: int) -> float:
    """Time of the horizon's operations, and of the rebuild where the candidate is not what the shard is now."""
    cost = shard.costs[candidate]
    assert cost is not None, "refused candidates are not asked"
    changes = shard.current is not None and shard.current != candidate
    return operations_us(shard, cost) + (cost.rebuild_us if changes else 0.0)


def size_bytes(shard: Shard, candidate: int) -> int:
    """Bytes that are kept free for a candidate."""
    cost = shard.costs[candidate]
    assert cost is not None, "refused candidates are not asked"
    return math.ceil(cost.peak_bytes.most)


def refusal(problem: IndexProblem, shard: Shard, candidate: int) -> str | None:
    """Explain why a candidate cannot serve a shard, in words; None: it can."""
    cost, configuration = shard.costs[candidate], problem.candidates[candidate]
    if cost is None:
        return "is not to be taken"
    if not configuration.ordered and (shard.ordered or shard.operations.scans > 0):
        return "keeps no order"
    if shard.operations.writes > 0 and (not configuration.writable or cost.write_ns is None):
        return "takes no writes"
    longest = problem.longest_pause_us
    if longest is not None and cost.pause_us is not None and cost.pause_us.most > longest:
        return f"may pause for {cost.pause_us.most:.0f} us"
    return None


def serving(problem: IndexProblem, shard: Shard) -> list[int]:
    """Candidates that can serve a shard, ascending."""
    return [c for c in range(len(problem.candidates)) if refusal(problem, shard, c) is None]


def words(configuration: Configuration) -> str:
    """A configuration in short: ``fragmented-log 64 x 256, 16 first``."""
    match configuration.structure:
        case "gapped-array":
            limits = [
                f"{name} {value:g}"
                for name, value in (("Msi", configuration.most_searches), ("Msh", configuration.most_shifts))
                if value is not None
            ]
            told = " ".join(limits) or f"for {100 * configuration.insert_share:g}% inserts"
            return f"gapped-array {told}"
        case "fragmented-log":
            log = configuration
            return f"fragmented-log {log.fragment_keys} x {log.most_fragments}, {log.first_fragments} first"
        case other:
            return other


@dataclass(frozen=True)
class Option:
    """One candidate on one shard."""

    candidate: int
    time_us: float
    size_bytes: int


def all_options(problem: IndexProblem, s: int) -> list[Option]:
    """Options of a shard, in the order of candidates."""
    shard = problem.shards[s]
    return [Option(c, time_us(shard, c), size_bytes(shard, c)) for c in serving(problem, shard)]


def options(problem: IndexProblem, s: int) -> list[Option]:
    """List a shard's options that no other one beats: more bytes, less time. The first takes least memory, the last
    least time. Of two that are equal in both, the first one stays.

    Nothing is lost: where another candidate takes no more time and no more bytes, put it in place in any plan, on the
    same thread. No host then holds more, no thread takes longer, every shard still has one configuration.
    """
    kept: list[Option] = []
    for option in sorted(all_options(problem, s), key=lambda o: (o.size_bytes, o.time_us, o.candidate)):
        if not kept or option.time_us < kept[-1].time_us:
            kept.append(option)
    return kept
