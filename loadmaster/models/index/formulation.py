"""The program of configurations: a multiple-choice knapsack for every host, over all threads or for the longest one.

After the selection of [Shah23], section 6.3.2, which is by speed alone and for one index; memory, hosts and threads are
our own.

Sets:
    s           shards, h(s) the host that one lives on
    c           candidates of a shard, C_s those that nothing beats (:mod:`.options`)
    h           hosts
    p           threads of a host; of a shard those that may serve it, P_s: the given one, or all of its host

Parameters: t_sc the time of a shard's operations, and of its rebuild where c is not what it is now, over the horizon;
b_sc the bytes that are kept for it; B_h those that a host has.

Variables:
    x[s,c]      binary: the shard gets the candidate
    z[s,c,p]    binary: and is served by the thread; only where P_s has several, elsewhere x itself
    T           continuous: time of the thread that takes longest

Objective: minimize sum t_sc x[s,c], or T. When the longest thread is known, the sum is minimized with T held to it: of
plans that are equally long, the one that takes least in all.

Constraints:
(M1)  a shard gets one candidate: sum_c x[s,c] = 1 - `one_configuration`
(M2)  what a host holds fits: sum_(s: h(s) = h) sum_c b_sc x[s,c] <= B_h - `fits_the_host`
(M3)  a shard is served by one thread: sum_p z[s,c,p] = x[s,c] - `one_thread`
(M4)  where no thread of a host is given, they are equal: the k-th shard of the host, the one of the longest at its
      quickest first, is on one of the first k: z[s,c,p] = 0 for p >= k - `alike_threads`
(M5)  no thread takes longer than the longest: sum_(s,c) t_sc z[s,c,p] <= T - `within_the_longest`

(M3) to (M5), z and T are there for the longest thread alone. Times are divided by ``unit_us`` and bytes by B_h, so
that a solver's tolerances mean the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.index.problem import IndexProblem
from loadmaster.models.index.serving import Option
from loadmaster.solvers.program import FloatArray, IntArray, Program, ProgramBuilder


@dataclass(frozen=True)
class Formulated:
    """The program and its columns: x [shards][options]; z [shards], each None or [options, threads]."""

    program: Program
    x: tuple[IntArray, ...]
    z: tuple[IntArray | None, ...]

    def chosen(self, values: FloatArray) -> list[int]:
        """Numbers of the options that a point takes, [shards]."""
        return [int(values[columns].argmax()) for columns in self.x]

    def threads(self, values: FloatArray) -> list[int | None]:
        """Thread of each shard at a point, [shards]; None where only one can be taken."""
        return [None if columns is None else int(values[columns].sum(axis=0).argmax()) for columns in self.z]

    def without(self, chosen: Sequence[int], shards: Sequence[int], name: str) -> Formulated:
        """Copy the program with a row: these shards cannot all have these options, which are too much together."""
        coefficients = np.zeros(self.program.column_count)
        coefficients[[int(self.x[s][chosen[s]]) for s in shards]] = 1.0
        return Formulated(self.program.with_row(name, coefficients, upper=len(shards) - 1.0), self.x, self.z)


def formulate(
    problem: IndexProblem,
    of: Sequence[Sequence[Option]],
    budget_bytes: int,
    unit_us: float,
    longest_us: float | None = None,
) -> Formulated:
    """The program of the options of each shard, where ``unit_us`` microseconds count as 1. If the time of the longest
    thread is given, the sum is minimized under it."""
    b = ProgramBuilder()
    by_sum = problem.objective == "sum" or longest_us is not None
    times = [np.array([o.time_us for o in options]) / unit_us for options in of]
    x = [b.columns(f"x[{s}]", len(t), upper=1.0, integer=True, cost=t if by_sum else 0.0) for s, t in enumerate(times)]
    one_configuration(b, x)
    fits_the_host(b, problem, of, x, budget_bytes)
    z: list[IntArray | None] = [None] * len(x)
    if problem.objective == "longest-thread":
        z = one_thread(b, problem, x, alike_threads(problem, of))
        most = np.inf if longest_us is None else longest_us / unit_us
        longest = b.columns("T", (), upper=most, cost=0.0 if by_sum else 1.0)
        within_the_longest(b, problem, times, x, z, int(longest))
    return Formulated(b.build(), tuple(x), tuple(z))


def one_configuration(b: ProgramBuilder, x: Sequence[IntArray]) -> None:
    """Add (M1): a shard gets one candidate."""
    rows = b.row_list("one_configuration")
    for columns in x:
        rows.add(columns.tolist(), [1.0] * len(columns), lower=1.0, upper=1.0)
    rows.done()


def fits_the_host(
    b: ProgramBuilder,
    problem: IndexProblem,
    of: Sequence[Sequence[Option]],
    x: Sequence[IntArray],
    budget_bytes: int,
) -> None:
    """Add (M2): the shards of a host fit it."""
    rows = b.row_list("fits_the_host")
    for h in range(len(problem.hosts)):
        room = problem.room_bytes(h, budget_bytes)
        scale = max(room, 1)
        here = [s for s, shard in enumerate(problem.shards) if shard.host == h]
        sizes = [o.size_bytes / scale for s in here for o in of[s]]
        rows.add([int(c) for s in here for c in x[s]], sizes, upper=room / scale)
    rows.done()


def alike_threads(problem: IndexProblem, of: Sequence[Sequence[Option]]) -> list[int]:
    """Bounds by (M4), [shards]: so many threads may serve each, the first ones of its host."""
    most = [problem.hosts[shard.host].threads for shard in problem.shards]
    for h, host in enumerate(problem.hosts):
        here = [s for s, shard in enumerate(problem.shards) if shard.host == h]
        if all(problem.shards[s].thread is None for s in here):
            for k, s in enumerate(sorted(here, key=lambda s: -of[s][-1].time_us)):
                most[s] = min(k + 1, host.threads)
    return most


def one_thread(
    b: ProgramBuilder, problem: IndexProblem, x: Sequence[IntArray], most: Sequence[int]
) -> list[IntArray | None]:
    """Add (M3) and the columns of threads: None where only one can be taken. At most ``most`` [shards] may serve
    one."""
    rows = b.row_list("one_thread")
    made: list[IntArray | None] = []
    for s, (shard, columns) in enumerate(zip(problem.shards, x, strict=True)):
        threads = problem.hosts[shard.host].threads
        if shard.thread is not None or threads == 1:
            made.append(None)
            continue
        may = np.arange(threads) < most[s]
        served = b.columns(f"z[{s}]", (len(columns), threads), upper=may, integer=True)
        for column, by_thread in zip(columns.tolist(), served.tolist(), strict=True):
            rows.add([column, *by_thread], [-1.0, *[1.0] * threads], lower=0.0, upper=0.0)
        made.append(served)
    rows.done()
    return made


def within_the_longest(
    b: ProgramBuilder,
    problem: IndexProblem,
    times: Sequence[FloatArray],
    x: Sequence[IntArray],
    z: Sequence[IntArray | None],
    longest: int,
) -> None:
    """Add (M5), for threads that have anything to serve."""
    terms: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for shard, took, columns, served in zip(problem.shards, times, x, z, strict=True):
        if served is None:
            terms[shard.host, shard.thread or 0] += zip(columns.tolist(), took.tolist(), strict=True)
            continue
        for p in range(served.shape[1]):
            terms[shard.host, p] += zip(served[:, p].tolist(), took.tolist(), strict=True)
    rows = b.row_list("within_the_longest")
    for thread in sorted(terms):
        columns_of, took_of = zip(*terms[thread], strict=True)
        rows.add([*columns_of, longest], [*took_of, -1.0], upper=0.0)
    rows.done()
