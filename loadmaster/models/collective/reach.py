"""Whether a schedule exists at all: can every chunk get from where it starts to where it must end?"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Unreachable

# A cut is told by so many of its ranks and links; the plan lists all ranks.
_SHOWN = 8


def unreachable(instance: Instance) -> Unreachable | None:
    """The first chunk that cannot reach one of its targets, with the cut; None: there is a schedule.

    A sum needs a way from each of its parts to each of its targets.
    """
    reached: dict[tuple[tuple[int, ...], frozenset[int] | None], frozenset[int]] = {}
    for index, chunk in enumerate(instance.chunks):
        starts = [(source,) for source in chunk.sources] if chunk.reduces else [chunk.sources]
        for start in starts:
            found = reached.get((start, chunk.senders))
            if found is None:
                found = reached[start, chunk.senders] = _reached(instance, index, start)
            missed = next((target for target in chunk.targets if target not in found), None)
            if missed is not None:
                return Unreachable(index, missed, tuple(sorted(found)), _why(instance, index, start, missed, found))
    return None


def _reached(instance: Instance, chunk: int, start: Sequence[int]) -> frozenset[int]:
    """The ranks that a chunk can reach from some ranks, those included."""
    usable = instance.usable_links[chunk]
    every = len(usable) == len(instance.topology.links)
    allowed = range(len(instance.topology.links)) if every else frozenset(usable)
    found, waiting = set(start), list(start)
    while waiting:
        leaving = instance.topology.out_links[waiting.pop()]
        fresh = {instance.topology.links[k].target for k in leaving if k in allowed} - found
        found |= fresh
        waiting += fresh
        if len(found) == instance.topology.rank_count:
            break
    return frozenset(found)


def _why(instance: Instance, chunk: int, start: Sequence[int], rank: int, reached: frozenset[int]) -> str:
    """The cut in words, with what would open it."""
    topology = instance.topology
    closed = [k for k in topology.links if k.source in reached and k.target not in reached]
    said = f"Chunk {chunk}, from {_ranks(sorted(start))}, cannot reach rank {rank}: no link that it may use leaves "
    said += f"{_ranks(sorted(reached))}."
    if closed:
        shown = ", ".join(f"{k.source} -> {k.target}" for k in closed[:_SHOWN])
        more = f" and {len(closed) - _SHOWN} more" if len(closed) > _SHOWN else ""
        senders = instance.chunks[chunk].senders or ()
        said += f" Links {shown}{more} do, but only {_ranks(sorted(senders))} may send it to another node."
        return f"{said} Relay it through a rank with such a link (sketch.relays), or leave the relays out."
    return f"{said} Add one that does; where a sketch took it away, let it in (sketch.internode, sketch.switches)."


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 0, 1, 2``, shortened."""
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
