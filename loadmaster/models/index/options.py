"""Candidates that count for each shard: of those that can serve it, the ones that nothing beats.

A candidate goes where another one takes no more time and no more bytes. Nothing is lost: put the other one in its place
in any plan, on the same thread. No host then holds more, no thread takes longer, every shard still has one
configuration. So among the best plans there is one without it. Of two that are equal in both, the first one stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import serving, size_bytes, time_us


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
    """Undominated options of a shard: more bytes, less time. The first takes least memory, the last least time."""
    kept: list[Option] = []
    for option in sorted(all_options(problem, s), key=lambda o: (o.size_bytes, o.time_us, o.candidate)):
        if not kept or option.time_us < kept[-1].time_us:
            kept.append(option)
    return kept
