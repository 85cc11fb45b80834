"""The two phases of a sum with several targets: until it is whole at its root, and copied from there on.

Programs plan one phase at a time (:mod:`loadmaster.models.collective.hops`); put together again, copies follow sums as
closely as the orders of the resources allow. Source: [Shah23], section 5.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from loadmaster.models.collective.bounds import lower_bound
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.symmetry import breaks_chunks
from loadmaster.planner.collective.prune import finish_ns, in_order, retime
from loadmaster.planner.collective.reversal import gathering
from loadmaster.planner.effort import Effort

# Instance, a schedule of it, a bound of all of them in ns, seconds at most -> a schedule that is no slower.
Move = Callable[[Instance, Sequence[Send], int, float, Effort], tuple[Send, ...]]


def summing(instance: Instance, roots: Sequence[int]) -> Instance:
    """Build the first phase: sums to their roots. Other chunks stay where they are."""
    chunks = tuple(
        replace(chunk, targets=(root,)) if chunk.reduces else replace(chunk, targets=chunk.sources)
        for chunk, root in zip(instance.chunks, roots, strict=True)
    )
    return replace(instance, chunks=chunks)


def joined(instance: Instance, sums: Sequence[Send], copies: Sequence[Send]) -> tuple[Send, ...]:
    """Join both phases in one schedule."""
    end_ns = finish_ns(instance, sums)
    later = tuple(replace(send, start_ns=send.start_ns + end_ns) for send in copies)
    return retime(instance, in_order((*sums, *later)))


def phase_by_phase(
    instance: Instance, sends: Sequence[Send], move: Move, seconds: float, effort: Effort
) -> tuple[Send, ...]:
    """Make a move on each phase of a schedule, for half of the seconds; the schedule itself where that makes nothing
    faster, or a sum is completed in several places."""
    best = tuple(sends)
    roots = _roots(instance, best)
    if roots is None:
        return best
    sums = tuple(send for send in best if send.combines)
    copies = tuple(send for send in best if not send.combines)

    def moved(phase: Instance, of_phase: Sequence[Send]) -> tuple[Send, ...]:
        phase = _symmetric(phase)
        return move(phase, retime(phase, of_phase), lower_bound(phase).ns, seconds / 2, effort)

    found = joined(instance, moved(summing(instance, roots), sums), moved(gathering(instance, roots), copies))
    return min(best, found, key=lambda candidate: finish_ns(instance, candidate))


def _roots(instance: Instance, sends: Sequence[Send]) -> tuple[int, ...] | None:
    """Root of each chunk: the one rank whose part of the sum is not sent on; any source of a chunk without a sum."""
    left = [set(chunk.sources) for chunk in instance.chunks]
    for send in sends:
        if send.combines:
            for c in send.chunks:
                left[c].add(send.target)
    for send in sends:
        if send.combines:
            for c in send.chunks:
                left[c].discard(send.source)
    if any(chunk.reduces and len(ranks) != 1 for chunk, ranks in zip(instance.chunks, left, strict=True)):
        return None
    return tuple(min(ranks) for ranks in left)


def _symmetric(phase: Instance) -> Instance:
    """Keep the symmetries of a phase that map roots onto roots."""
    return replace(phase, generators=tuple(g for g in phase.generators if breaks_chunks(phase.chunks, g) is None))
