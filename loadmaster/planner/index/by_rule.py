"""Configurations by rule, without a solver: what saves most time for its bytes, or one configuration for all shards."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.index.options import Option, all_options
from loadmaster.models.index.problem import IndexProblem


def greedy(problem: IndexProblem, of: Sequence[Sequence[Option]], budget_bytes: int) -> list[Option] | None:
    """Every shard with the least bytes first; then always the step that saves most time for a byte, while it fits.

    Args:
        of: the options of each shard, those that nothing beats.

    Returns:
        an option for each shard; None where the least bytes are too much.
    """
    at = [0] * len(of)
    free = [problem.room_bytes(h, budget_bytes) for h in range(len(problem.hosts))]
    for shard, options in zip(problem.shards, of, strict=True):
        free[shard.host] -= options[0].size_bytes
    if min(free) < 0:
        return None
    while True:
        best: tuple[float, int, int] | None = None
        for s, options in enumerate(of):
            here = options[at[s]]
            for n in range(at[s] + 1, len(options)):
                more = options[n].size_bytes - here.size_bytes
                if more > free[problem.shards[s].host]:
                    break
                saved = (here.time_us - options[n].time_us) / more
                if best is None or saved > best[0]:
                    best = saved, s, n
        if best is None:
            return [options[n] for n, options in zip(at, of, strict=True)]
        _, s, n = best
        free[problem.shards[s].host] -= of[s][n].size_bytes - of[s][at[s]].size_bytes
        at[s] = n


def one_for_all(problem: IndexProblem, budget_bytes: int) -> list[list[Option]]:
    """For each candidate that can serve every shard and fits every host: the option that it is for each."""
    every = [{o.candidate: o for o in all_options(problem, s)} for s in range(len(problem.shards))]
    found = []
    for c in range(len(problem.candidates)):
        if not all(c in options for options in every):
            continue
        chosen = [options[c] for options in every]
        held = [0] * len(problem.hosts)
        for shard, option in zip(problem.shards, chosen, strict=True):
            held[shard.host] += option.size_bytes
        if all(took <= problem.room_bytes(h, budget_bytes) for h, took in enumerate(held)):
            found.append(chosen)
    return found


def on_threads(problem: IndexProblem, chosen: Sequence[Option]) -> list[int | None]:
    """The thread of each shard: the given one; else, for the longest thread, the longest shard first on the thread that
    has least to do."""
    threads = [shard.thread for shard in problem.shards]
    if problem.objective == "sum":
        return threads
    taken = [[0.0] * host.threads for host in problem.hosts]
    for shard, option in zip(problem.shards, chosen, strict=True):
        if shard.thread is not None:
            taken[shard.host][shard.thread] += option.time_us
    for s in sorted(range(len(chosen)), key=lambda s: -chosen[s].time_us):
        if threads[s] is None:
            here = taken[problem.shards[s].host]
            threads[s] = p = here.index(min(here))
            here[p] += chosen[s].time_us
    return threads
