"""Links on ways of fewest hops: those that TACCL's routing lets each chunk take.

L_c, as :mod:`loadmaster.models.collective.taccl.routing` defines it, which writes the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Instance


def way_links(instance: Instance) -> tuple[tuple[int, ...], ...]:
    """L_c of each chunk. A chunk of no bytes needs none.

    Raises:
        InputError: a target cannot be reached.
    """
    found: dict[tuple[object, ...], tuple[int, ...]] = {}
    hops: dict[tuple[frozenset[int] | None, tuple[int, ...], bool], list[int]] = {}
    ways = []
    for index, chunk in enumerate(instance.chunks):
        key = (chunk.senders, chunk.sources, chunk.targets, bool(chunk.size_bytes))
        if key not in found:
            found[key] = _way_links(instance, index, hops)
        ways.append(found[key])
    return tuple(ways)


def _way_links(
    instance: Instance, index: int, hops: dict[tuple[frozenset[int] | None, tuple[int, ...], bool], list[int]]
) -> tuple[int, ...]:
    chunk, topology = instance.chunks[index], instance.topology
    if not chunk.size_bytes:
        return ()
    usable = instance.usable_links[index]

    def count(ranks: tuple[int, ...], backwards: bool) -> list[int]:
        key = (chunk.senders, ranks, backwards)
        if key not in hops:
            hops[key] = _hops(instance, usable, ranks, backwards)
        return hops[key]

    out = count(chunk.sources, False)
    taken: set[int] = set()
    for target in chunk.targets:
        if out[target] < 0:
            raise InputError(
                f"chunks[{index}].targets", target, "cannot be reached", "Give links, or senders, that lead there."
            )
        back = count((target,), True)
        for k in usable:
            link = topology.links[k]
            there, on = out[link.source], back[link.target]
            if min(there, on) >= 0 and there + 1 + on == out[target]:
                taken.add(k)
    if len(chunk.targets) > 1:
        ranks = {rank for k in taken for rank in (topology.links[k].source, topology.links[k].target)}
        inner = ranks.difference(chunk.sources)
        taken = {k for k in usable if topology.links[k].source in ranks and topology.links[k].target in inner}
    return tuple(sorted(taken))


def _hops(instance: Instance, usable: Sequence[int], ranks: tuple[int, ...], backwards: bool) -> list[int]:
    """Fewest hops to each rank from some ranks, or back to them; -1 where nothing leads there."""
    topology = instance.topology
    open_links = set(usable)
    found = [-1] * topology.rank_count
    for r in ranks:
        found[r] = 0
    edge = list(ranks)
    while edge:
        reached = []
        for r in edge:
            for k in (topology.in_links if backwards else topology.out_links)[r]:
                other = topology.links[k].source if backwards else topology.links[k].target
                if k in open_links and found[other] < 0:
                    found[other] = found[r] + 1
                    reached.append(other)
        edge = reached
    return found
