"""Table of algorithms of several sizes: the fastest at each size, and where one overtakes the other.

An algorithm is its order of sends: at another size it keeps that order and is timed again. So one planned for a size
may win at the next one too, and between two sizes there is one where the second overtakes the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import cuts
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.logical import instance_of
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import CollectiveProblem
from loadmaster.planner.collective.prune import finish_ns, retime, time_at

# Timing an algorithm of more messages than this at every size takes longer than it is worth.
MOST_MESSAGES = 20_000


def shared(problem: CollectiveProblem, algorithms: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    """Give every size the fastest algorithm that was found for any. The bound of a size stays what it is."""
    found = []
    for algorithm in algorithms:
        best = algorithm
        for other in algorithms:
            if other is algorithm or len(other.sends) > MOST_MESSAGES:
                continue
            instance = _instance(problem, other, algorithm.size_bytes)
            if instance is None or time_at(instance, other.sends) >= best.time_ns:
                continue
            best = replace(
                at_size(problem, other, algorithm.size_bytes),
                bound_ns=algorithm.bound_ns,
                bound_by=algorithm.bound_by,
                throughput_bound_ns=algorithm.throughput_bound_ns,
            )
        found.append(best)
    return tuple(found)


def at_size(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> Algorithm:
    """Return an algorithm at another size, that divides into its chunks; its bound stays that of its own size."""
    instance = instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form)
    sends = retime(instance, algorithm.sends)
    return replace(algorithm, size_bytes=size_bytes, sends=sends, time_ns=finish_ns(instance, sends))


def with_crossovers(problem: CollectiveProblem, algorithms: Sequence[Algorithm]) -> tuple[Algorithm, ...]:
    """Give each algorithm the smallest size from which it is no slower than the one before it."""
    found = [replace(algorithm, from_bytes=0) for algorithm in algorithms[:1]]
    for before, after in pairwise(algorithms):
        found.append(replace(after, from_bytes=_crossover(problem, before, after)))
    return tuple(found)


def _crossover(problem: CollectiveProblem, before: Algorithm, after: Algorithm) -> int:
    """Find where one algorithm overtakes another: bisection over the sizes that divide into the chunks of both."""
    step = math.lcm(*(cuts(problem, algorithm.chunk_count, algorithm.form) for algorithm in (before, after)))
    low, high = before.size_bytes, after.size_bytes
    if max(len(before.sends), len(after.sends)) > MOST_MESSAGES:
        return high
    while high - low > step:
        middle = low + (high - low) // (2 * step) * step
        middle += -middle % step
        if not low < middle < high:
            break
        if _time_at(problem, after, middle) <= _time_at(problem, before, middle):
            high = middle
        else:
            low = middle
    return high


def _time_at(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> int:
    return time_at(instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form), algorithm.sends)


def _instance(problem: CollectiveProblem, algorithm: Algorithm, size_bytes: int) -> Instance | None:
    """Build the instance of an algorithm at another size; None where that does not divide into its chunks."""
    try:
        return instance_of(problem, size_bytes, algorithm.chunk_count, algorithm.form)
    except InputError:
        return None
