"""Reachability of targets: a schedule exists if every chunk can get from where it starts to where it must end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Unreachable

# No way: more hops than any.
NO_WAY = 1 << 20
# A cut is told by so many of its ranks and links; the plan lists all ranks.
_SHOWN = 8


def unreachable(instance: Instance) -> Unreachable | None:
    """The first chunk that cannot reach one of its targets, with the cut; None: a schedule exists. A sum needs a rank
    that each part can reach, and from which the whole reaches each target. Chunks of no bytes are everywhere."""
    reach = Reach(instance)
    for index, chunk in enumerate(instance.chunks):
        if not chunk.size_bytes:
            continue
        for start in [(source,) for source in chunk.sources] if chunk.reduces else [chunk.sources]:
            found = reach.of(index, start)
            missed = next((target for target in chunk.targets if target not in found), None)
            if missed is not None:
                return Unreachable(index, missed, tuple(sorted(found)), _why(instance, index, start, missed, found))
        if chunk.reduces and not reach.roots(index):
            # Every part reaches the first target, so it is not from there that the whole reaches all.
            found = reach.of(index, chunk.targets[:1])
            missed = next(target for target in chunk.targets if target not in found)
            return Unreachable(index, missed, tuple(sorted(found)), _no_root(instance, index, missed, found))
    return None


class Reach:
    """The ranks that an instance's chunks can reach; chunks that may use the same links share the answers."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._known: dict[tuple[tuple[int, ...], frozenset[int] | None], frozenset[int]] = {}
        self._roots: dict[object, tuple[int, ...]] = {}

    def of(self, chunk: int, start: tuple[int, ...]) -> frozenset[int]:
        """The ranks that a chunk can reach from some ranks, those included."""
        key = (start, self.instance.chunks[chunk].senders)
        if key not in self._known:
            self._known[key] = _reached(self.instance, chunk, start)
        return self._known[key]

    def met(self, chunk: int) -> frozenset[int]:
        """The ranks that every part of a sum can reach."""
        return frozenset.intersection(*(self.of(chunk, (source,)) for source in self.instance.chunks[chunk].sources))

    def roots(self, chunk: int) -> tuple[int, ...]:
        """The ranks at which a sum can be complete and go on to all its targets, ascending."""
        of = self.instance.chunks[chunk]
        key = (of.sources, of.targets, of.senders)
        if key not in self._roots:
            met = sorted(self.met(chunk))
            self._roots[key] = tuple(rank for rank in met if self.of(chunk, (rank,)).issuperset(of.targets))
        return self._roots[key]


def _reached(instance: Instance, chunk: int, start: Sequence[int]) -> frozenset[int]:
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


def fewest_hops(instance: Instance, usable: Iterable[int], start: Sequence[int], *, backwards: bool) -> list[int]:
    """Fewest links to each rank from any of some ranks, or back to them; ``NO_WAY`` where nothing leads there."""
    topology, allowed = instance.topology, frozenset(usable)
    found = [NO_WAY] * topology.rank_count
    for rank in start:
        found[rank] = 0
    waiting = list(start)
    for rank in waiting:
        for k in (topology.in_links if backwards else topology.out_links)[rank]:
            other = topology.links[k].source if backwards else topology.links[k].target
            if k in allowed and found[other] == NO_WAY:
                found[other] = found[rank] + 1
                waiting.append(other)
    return found


def _no_root(instance: Instance, chunk: int, missed: int, found: frozenset[int]) -> str:
    """Explain why a sum is nowhere complete, where each part could reach each target."""
    of = instance.chunks[chunk]
    return (
        f"Chunk {chunk} is a sum of the parts of {_ranks(of.sources)}, for {_ranks(of.targets)}. A part is sent on "
        "once, so the sum is completed on one rank, and none that all parts can reach can reach all targets: completed "
        f"on rank {of.targets[0]}, it gets to {_ranks(sorted(found))} and not to rank {missed}. Add a link that does."
    )


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
    """Name ranks: ``rank 3`` or ``ranks 0, 1, 2``, shortened."""
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
