"""Configurations by rule, without a solver: what saves most time for its bytes, or one configuration for all shards."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import Option, all_options

# Sums of the same times in another order are equal to so many digits.
_CLOSE = 1e-9


def greedy(problem: IndexProblem, of: Sequence[Sequence[Option]], budget_bytes: int) -> list[Option] | None:
    """Choose options by rule: the least bytes, then always the step that saves most time per byte, while it fits.
    ``of``: the options of each shard that nothing beats, the smallest first. None where the least bytes are too much.
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
    """List the configurations that serve every shard and fit every host: for each, its option at each shard."""
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
    """Choose the thread of each shard: the given one; else, for the longest thread, the longest shard first on the
    thread that has least to do, and then what :func:`_evened` changes."""
    threads = [shard.thread for shard in problem.shards]
    if problem.objective == "sum":
        return threads
    times = [option.time_us for option in chosen]
    for h, host in enumerate(problem.hosts):
        here = [s for s, shard in enumerate(problem.shards) if shard.host == h]
        taken = [0.0] * host.threads
        for s in here:
            if (given := threads[s]) is not None:
                taken[given] += times[s]
        free = sorted((s for s in here if threads[s] is None), key=lambda s: -times[s])
        for s in free:
            threads[s] = p = taken.index(min(taken))
            taken[p] += times[s]
        _evened(times, free, threads, taken)
    return threads


def _evened(times: Sequence[float], free: Sequence[int], threads: list[int | None], taken: list[float]) -> None:
    """Move shards of the longest thread, or exchange them with another thread's, while that makes it shorter. The
    longer one of two threads gets shorter each time, so it ends. ``free``: shards of one host whose thread may be
    changed; ``taken``: [threads] of that host."""
    while True:
        longest = taken.index(max(taken))
        best: tuple[float, int, int, int | None] | None = None
        for s in (s for s in free if threads[s] == longest):
            for p in range(len(taken)):
                for other in (None, *(o for o in free if threads[o] == p)) if p != longest else ():
                    moved = times[s] - (0.0 if other is None else times[other])
                    after = max(taken[longest] - moved, taken[p] + moved)
                    if after < taken[longest] * (1 - _CLOSE) and (best is None or after < best[0]):
                        best = after, s, p, other
        if best is None:
            return
        _, s, p, other = best
        moved = times[s] - (0.0 if other is None else times[other])
        threads[s] = p
        if other is not None:
            threads[other] = longest
        taken[longest] -= moved
        taken[p] += moved
