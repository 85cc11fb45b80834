"""Limit on the size of problems: those too large to plan are refused at once, with the size that can be planned.

What a plan costs in time and in memory goes by its *deliveries*: chunks times the ranks that must get them. List
scheduling takes about a millisecond and 3 KiB for each of them.
"""

from __future__ import annotations

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import ROOTED, named_chunk_counts
from loadmaster.models.collective.problem import CollectiveProblem

# A minute or two of list scheduling, and less than a GiB.
MOST_DELIVERIES = 1 << 18


def deliveries(problem: CollectiveProblem, chunk_count: int) -> int:
    """Count the deliveries of a problem: for each chunk the ranks that must get it; of sums that go on, the results."""
    if problem.custom is not None:
        return sum(len(set(chunk.targets) - set(chunk.sources)) for chunk in problem.custom)
    ranks = problem.topology.rank_count
    pairs = ranks - 1 if problem.collective in ROOTED else ranks * (ranks - 1)
    return pairs * chunk_count


def expect_plannable(problem: CollectiveProblem) -> None:
    """Refuse a problem that is too large to plan.

    Raises:
        InputError: naming what makes it so, and the most that can be planned.
    """
    for chunk_count in named_chunk_counts(problem) or (1,):
        found = deliveries(problem, chunk_count)
        if found <= MOST_DELIVERIES:
            continue
        what = f"makes {found:,} deliveries of chunks to ranks; {MOST_DELIVERIES:,} can be planned"
        if problem.custom is not None:
            raise InputError("custom", len(problem.custom), what, "Give fewer chunks, or fewer targets of each.")
        each = deliveries(problem, 1)
        if each <= MOST_DELIVERIES:
            raise InputError("chunk_counts", chunk_count, what, f"Give at most {MOST_DELIVERIES // each}.")
        most = next(n for n in range(problem.topology.rank_count, 0, -1) if n * (n - 1) <= MOST_DELIVERIES)
        raise InputError("topology", problem.topology.rank_count, what, f"Give at most {most} ranks.")
