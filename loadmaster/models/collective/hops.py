"""Hops: one chunk over one link. Routes as hops with what each waits for, and their orbits under the symmetries.

A chunk that is not a sum is routed along a tree (or a forest, where it has several sources) away from its sources: each
hop waits for the one that brought the chunk. A sum is routed along a tree towards its one target: each hop waits for
all that bring parts to its rank. A sum with several targets has two phases, one before and one after it is whole: plan
them one after the other, as TACCL does for AllReduce.

Source: [Shah23], sections 5.4.1 (symmetry), 5.5.1 (routes) and 5.7 (combining collectives).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.symmetry import Aliases, IntArray

# Per chunk, the indices of the links it uses.
Routes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Hop:
    """One chunk over one link, once the hops ``after`` (indices, ascending) have arrived."""

    chunk: int
    link: int
    after: tuple[int, ...]


def hops_of(instance: Instance, routes: Routes) -> tuple[Hop, ...]:
    """The hops of routes, by chunk and then by link. Chunks of no bytes need none: they are everywhere. ``InputError``:
    a route is not a tree from the sources over links the chunk may use, or misses a target."""
    found: list[Hop] = []
    for index, chunk in enumerate(instance.chunks):
        expect_one_target(index, chunk)
        links = sorted(routes[index]) if chunk.size_bytes else []
        place = {link: len(found) + i for i, link in enumerate(links)}
        waits = _waits(instance, index, links) if chunk.size_bytes else {}
        found += [Hop(index, link, tuple(sorted(place[k] for k in waits[link]))) for link in links]
    return tuple(found)


def _waits(instance: Instance, index: int, links: Sequence[int]) -> Mapping[int, list[int]]:
    """Links that each link of a chunk's route waits for; refuses a route that is not a tree."""
    chunk, topology, field = instance.chunks[index], instance.topology, f"routes[{index}]"
    remedy = "Give a tree from the sources to the targets, of links that the chunk may use."
    usable = set(instance.usable_links[index])
    for k in links:
        if k not in usable or links.count(k) > 1:
            raise InputError(field, k, "is no link that the chunk may use, or is there twice", remedy)
    # A sum goes the other way: from its target to its sources it is a tree like any other.
    starts, ends = chunk.tree_ends
    enters = {k: topology.links[k].source if chunk.reduces else topology.links[k].target for k in links}
    leaves = {k: topology.links[k].target if chunk.reduces else topology.links[k].source for k in links}
    by = {rank: k for k, rank in enters.items()}
    if len(by) < len(links) or set(by) & set(starts):
        raise InputError(field, list(links), "enters a rank that has the chunk", remedy)
    reached, left = set(starts), set(links)
    while left and (fresh := {k for k in left if leaves[k] in reached}):
        reached |= {enters[k] for k in fresh}
        left -= fresh
    if left or not set(ends) <= reached:
        raise InputError(field, list(links), "does not lead from the sources to every target", remedy)
    if chunk.reduces:
        return {k: [other for other in links if enters[k] == leaves[other]] for k in links}
    return {k: [by[leaves[k]]] if leaves[k] in by else [] for k in links}


def expect_one_target(index: int, chunk: Chunk) -> None:
    """Refuse a sum with several targets, with an ``InputError``."""
    if chunk.goes_on:
        raise InputError(
            f"chunks[{index}].targets",
            len(chunk.targets),
            "is more than one target of a sum",
            "Route the sum to one rank, and its result from there as a chunk of its own.",
        )


def orbits(instance: Instance, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Place of the first pair of the orbit of each (chunk, link) under the generators; None where an image is missing.
    Two pairs of an orbit start together in every symmetric schedule."""
    topology, present = instance.topology, set(pairs)
    for symmetry in instance.generators:
        for chunk, k in pairs:
            link = topology.links[k]
            image = topology.link_between[symmetry.ranks[link.source], symmetry.ranks[link.target]]
            if (symmetry.chunks[chunk], image) not in present:
                return None
    return _first_places(Aliases(instance).of_links, pairs)


def rank_orbits(instance: Instance, pairs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Place of the first pair of the orbit of each (chunk, rank); no image may be missing."""
    return _first_places(Aliases(instance).of_ranks, pairs)


def colliding(instance: Instance, pairs: Sequence[tuple[int, int]], orbit_of: Sequence[int]) -> frozenset[int]:
    """Orbits of (chunk, link) of which two pairs share a resource: they cannot start together."""
    found, held = set(), set()
    for (_, k), orbit in zip(pairs, orbit_of, strict=True):
        for resource in instance.topology.links[k].resources:
            if (orbit, resource) in held:
                found.add(orbit)
            held.add((orbit, resource))
    return frozenset(found)


def _first_places(
    orbit_of: Callable[[IntArray, IntArray], IntArray], pairs: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    if not pairs:
        return ()
    chunk, other = np.array(pairs, dtype=np.int64).T
    _, first, number = np.unique(orbit_of(chunk, other), return_index=True, return_inverse=True)
    return tuple(first[number].tolist())
