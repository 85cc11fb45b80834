"""Small index problems: drawn at random, and a few by hand."""

from __future__ import annotations

import random
from itertools import product

from loadmaster.models.index.configuration import Configuration, FragmentedLog, GappedArray, HashTable, SortedArray
from loadmaster.models.index.problem import Cost, Figure, Host, IndexProblem, Operations, Shard

CANDIDATES: tuple[Configuration, ...] = (
    GappedArray(),
    GappedArray(most_searches=4.0, most_shifts=50.0),
    FragmentedLog(64, 256, 16),
    SortedArray(),
    HashTable(),
)


def cost(read_ns: float, write_ns: float | None, peak_bytes: float, **more: object) -> Cost:
    """Measured figures."""
    write = None if write_ns is None else Figure(write_ns)
    return Cost(Figure(read_ns), Figure(peak_bytes), write, measured=True, **more)  # type: ignore[arg-type]


def random_problem(
    seed: int, *, shards: int = 4, objective: str = "sum", hosts: int = 2, threads: int = 2, candidates: int = 5
) -> IndexProblem:
    """Whole figures of one or two digits, so that ties and tight budgets are common."""
    draw = random.Random(seed)

    def shard(s: int) -> Shard:
        writes = draw.choice([0, 0, 1, 5])
        ordered = draw.random() < 0.3
        costs: list[Cost | None] = []
        for configuration in CANDIDATES[:candidates]:
            read, write = draw.randint(1, 30), draw.randint(1, 60) if configuration.writable else None
            costs.append(
                cost(
                    1e3 * read,
                    None if write is None else 1e3 * write,
                    draw.randint(1, 20),
                    rebuild_us=draw.randint(0, 90),
                )
            )
        if draw.random() < 0.2:
            costs[1] = None
        return Shard(
            f"s{s}",
            keys=100,
            operations=Operations(lookups=draw.randint(0, 9), inserts=writes),
            costs=tuple(costs),
            ordered=ordered,
            current=draw.choice([None, 0, 2]),
            host=draw.randrange(hosts),
            thread=draw.choice([None, draw.randrange(threads)]),
        )

    return IndexProblem(
        name=f"random-{seed}",
        candidates=CANDIDATES[:candidates],
        shards=tuple(shard(s) for s in range(shards)),
        hosts=tuple(Host(f"h{h}", threads) for h in range(hosts)),
        objective=objective,  # type: ignore[arg-type]
    )


def by_hand(problem: IndexProblem, s: int, c: int) -> tuple[float, int] | None:
    """Microseconds and bytes of a candidate on a shard; None where it cannot serve. Said apart from the package."""
    shard, configuration, figures = problem.shards[s], problem.candidates[c], problem.shards[s].costs[c]
    done = shard.operations
    if figures is None or ((shard.ordered or done.scans) and isinstance(configuration, HashTable)):
        return None
    writes = done.inserts + done.erases
    if writes and (isinstance(configuration, SortedArray) or figures.write_ns is None):
        return None
    took = done.lookups * figures.read_ns.expected / 1e3
    took += writes * (figures.write_ns.expected if figures.write_ns is not None else 0.0) / 1e3
    took += done.scans * (figures.scan_ns or figures.read_ns).expected / 1e3
    if shard.current is not None and shard.current != c:
        took += figures.rebuild_us
    return took, int(figures.peak_bytes.upper or figures.peak_bytes.expected)


def best_of_all(problem: IndexProblem, budget_bytes: int) -> float | None:
    """The optimum by trying every choice of candidates and threads; None where nothing fits."""
    best = None
    shards = range(len(problem.shards))
    serve = [[c for c in range(len(problem.candidates)) if by_hand(problem, s, c)] for s in shards]
    for chosen in product(*serve):
        came = [by_hand(problem, s, c) for s, c in enumerate(chosen)]
        held = [0] * len(problem.hosts)
        for shard, (_, size) in zip(problem.shards, came, strict=True):  # type: ignore[misc]
            held[shard.host] += size
        if max(held) > budget_bytes:
            continue
        times = [took for took, _ in came]  # type: ignore[misc]
        found = sum(times) if problem.objective == "sum" else _shortest_longest(problem, times)
        best = found if best is None else min(best, found)
    return best


def _shortest_longest(problem: IndexProblem, times: list[float]) -> float:
    threads = [
        [shard.thread] if shard.thread is not None else range(problem.hosts[shard.host].threads)
        for shard in problem.shards
    ]
    best = float("inf")
    for given in product(*threads):
        taken: dict[tuple[int, int], float] = {}
        for shard, p, took in zip(problem.shards, given, times, strict=True):
            taken[shard.host, p] = taken.get((shard.host, p), 0.0) + took
        best = min(best, max(taken.values()))
    return best


def by_dynamic_program(problem: IndexProblem, budget_bytes: int) -> float | None:
    """The least sum, host by host, over every number of bytes: exact, whole bytes being few here."""
    total = 0.0
    for h in range(len(problem.hosts)):
        least = [0.0] * (budget_bytes + 1)
        for s, shard in enumerate(problem.shards):
            if shard.host != h:
                continue
            came = [found for c in range(len(problem.candidates)) if (found := by_hand(problem, s, c))]
            least = [
                min((least[b - size] + took for took, size in came if size <= b), default=float("inf"))
                for b in range(budget_bytes + 1)
            ]
        total += least[budget_bytes]
    return None if total == float("inf") else total
