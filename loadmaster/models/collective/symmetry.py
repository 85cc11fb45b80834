"""Symmetries of an instance: which permutations are automorphisms, and the group that they generate.

A permutation of ranks and chunks is an automorphism when it maps links onto links of equal cost, the links of every
resource onto the links of a resource, and every chunk onto one of equal size with the images of its sources, targets
and senders. A schedule may then be looked for among those that are their own image; no half of a symmetry is applied.

Sketches name rotations of ranks. A rotation (offset, group) moves every rank by offset inside its group of that many
consecutive ranks, in all groups at once. TACCL then asks for equal sends only inside a group; a generator here maps
every send, and must be an automorphism of the whole instance.

Column aliasing: one variable for all pairs (chunk, link), or (chunk, rank), that symmetries map onto each other. A
schedule that is its own image under a symmetry has equal variables at (c, k) and at their images; so a program needs
one column for each orbit, and one row of those that become equal.

Source: [Shah23], section 5.4.1 (algorithm symmetry), appendix B.1 (``symmetry_offsets``), and equations 5.12 to 5.14,
which state aliasing by rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Chunk, Instance, Symmetry
from loadmaster.models.topologies.topology import Topology

# A group of more elements than this costs more to follow than it saves.
LARGEST_GROUP = 4096


def closure(generators: Sequence[Symmetry], rank_count: int, chunk_count: int) -> tuple[Symmetry, ...]:
    """Every element of the group: the identity first, then in the order found."""
    identity = Symmetry(tuple(range(rank_count)), tuple(range(chunk_count)))
    found = {(identity.ranks, identity.chunks): identity}
    fresh = [identity]
    while fresh:
        element = fresh.pop(0)
        for generator in generators:
            product = Symmetry(
                tuple(generator.ranks[r] for r in element.ranks), tuple(generator.chunks[c] for c in element.chunks)
            )
            if (product.ranks, product.chunks) not in found:
                if len(found) == LARGEST_GROUP:
                    raise InputError(
                        "sketch.symmetry", len(generators), f"gives over {LARGEST_GROUP} symmetries", "Give fewer."
                    )
                found[product.ranks, product.chunks] = product
                fresh.append(product)
    return tuple(found.values())


def expect_automorphism(instance: Instance, symmetry: Symmetry, field: str) -> None:
    """Refuse a generator that is no automorphism: ``InputError`` names the link, resource or chunk that breaks it."""
    why = breaks_topology(instance.topology, symmetry.ranks) or breaks_chunks(instance.chunks, symmetry)
    if why:
        raise InputError(
            field, list(symmetry.ranks), f"is no symmetry: {why}", "Give an automorphism, or leave it out."
        )


def breaks_topology(topology: Topology, ranks: Sequence[int]) -> str | None:
    """The first link or resource that a permutation of ranks does not map onto one like it; None if it maps all."""
    image: list[int] = []
    for link in topology.links:
        source, target = ranks[link.source], ranks[link.target]
        index = topology.link_between.get((source, target))
        shown = f"link {link.source} -> {link.target} maps to {source} -> {target}"
        if index is None:
            return f"{shown}, which is no link"
        other = topology.links[index]
        costs = [(k.latency_ns, k.message_ns, k.gbps, topology.crosses(k)) for k in (link, other)]
        if costs[0] != costs[1]:
            return f"{shown}, which has other costs"
        image.append(index)
    holders = [frozenset(of) for of in holders_of(topology)]
    known = set(holders)
    for resource, links in enumerate(holders):
        if frozenset(image[k] for k in links) not in known:
            return f"the links that share {topology.resources[resource]!r} map to links that share none"
    return None


def breaks_chunks(chunks: Sequence[Chunk], symmetry: Symmetry) -> str | None:
    """The first chunk that a symmetry does not map onto one like it; None if it maps all."""

    def moved(ranks: Iterable[int]) -> set[int]:
        return {symmetry.ranks[r] for r in ranks}

    for index, chunk in enumerate(chunks):
        image = symmetry.chunks[index]
        other = chunks[image]
        shown = f"chunk {index} maps to chunk {image}"
        if (chunk.size_bytes, chunk.reduces) != (other.size_bytes, other.reduces):
            return f"{shown}, which has another size"
        if moved(chunk.sources) != set(other.sources) or moved(chunk.targets) != set(other.targets):
            return f"{shown}, which does not start or end at the images of its ranks"
        if (chunk.senders is None) != (other.senders is None) or moved(chunk.senders or ()) != set(other.senders or ()):
            return f"{shown}, which leaves its node through other ranks"
    return None


def holders_of(topology: Topology) -> list[list[int]]:
    """Indices of the links that hold each resource."""
    found: list[list[int]] = [[] for _ in topology.resources]
    for index, link in enumerate(topology.links):
        for resource in link.resources:
            found[resource].append(index)
    return found


_Signature = tuple[int, bool, frozenset[int], frozenset[int], frozenset[int] | None]


def rotation(rank_count: int, offset: int, group: int, field: str = "sketch.symmetry") -> tuple[int, ...]:
    """Image of each rank under a rotation. Raises InputError: the groups do not divide the ranks, or nothing moves."""
    if group < 1 or rank_count % group:
        remedy = f"Give a group that divides {rank_count} ranks."
        raise InputError(field, [offset, group], f"has groups that do not divide {rank_count} ranks", remedy)
    if not 0 < offset < group:
        raise InputError(field, [offset, group], "moves no rank", f"Give an offset from 1 to {group - 1}.")
    return tuple(r // group * group + (r % group + offset) % group for r in range(rank_count))


def chunk_images(
    chunks: Sequence[Chunk], ranks: Sequence[int], owners: Sequence[int] | None = None, field: str = "sketch.symmetry"
) -> tuple[int, ...]:
    """Image of each chunk when ranks move: the chunk with the images of its sources, targets and senders.

    Of several such, the j-th of one rank's goes to the j-th of the other's. ``owners``: a rank for each chunk, which
    must go along, where sources and targets do not tell chunks apart (the pieces of an AllReduce). ``InputError``: a
    chunk has no image.
    """
    moved: dict[tuple[int, ...], frozenset[int]] = {}

    def image(of: tuple[int, ...]) -> frozenset[int]:
        if of not in moved:
            moved[of] = frozenset(ranks[r] for r in of)
        return moved[of]

    alike: dict[tuple[_Signature, int | None], list[int]] = {}
    place = []
    for index, chunk in enumerate(chunks):
        sets = frozenset(chunk.sources), frozenset(chunk.targets)
        key = (chunk.size_bytes, chunk.reduces, *sets, chunk.senders), owners[index] if owners else None
        those = alike.setdefault(key, [])
        place.append(len(those))
        those.append(index)
    found = []
    for index, chunk in enumerate(chunks):
        senders = None if chunk.senders is None else image(tuple(sorted(chunk.senders)))
        sets = image(chunk.sources), image(chunk.targets)
        key = (chunk.size_bytes, chunk.reduces, *sets, senders), ranks[owners[index]] if owners else None
        those = alike.get(key, [])
        if len(those) <= place[index]:
            raise InputError(
                field,
                list(ranks),
                f"is no symmetry: chunk {index} maps to one of {chunk.size_bytes} bytes from {_few(sets[0])} to "
                f"{_few(sets[1])}, and there is none",
                "Give an automorphism, or leave it out.",
            )
        found.append(those[place[index]])
    return tuple(found)


def generator(
    instance: Instance, offset: int, group: int, owners: Sequence[int] | None = None, field: str = "sketch.symmetry"
) -> Symmetry:
    """A rotation as a verified symmetry of an instance; an ``InputError`` names the pair that breaks it."""
    ranks = rotation(instance.topology.rank_count, offset, group, field)
    symmetry = Symmetry(ranks, chunk_images(instance.chunks, ranks, owners, field))
    expect_automorphism(instance, symmetry, field)
    return symmetry


def _few(ranks: frozenset[int]) -> str:
    shown = sorted(ranks)
    return f"{len(shown)} ranks" if len(shown) > 3 else ", ".join(map(str, shown))


IntArray = NDArray[np.int64]


class Aliases:
    """The orbits of an instance under its generators; without any, every pair is alone."""

    def __init__(self, instance: Instance) -> None:
        self._topology = instance.topology
        self._group = closure(instance.generators, instance.topology.rank_count, len(instance.chunks))

    @cached_property
    def chunks(self) -> IntArray:
        """First chunk of each chunk's orbit, [chunks]."""
        return np.asarray(self._chunk_images.min(axis=0))

    @cached_property
    def links(self) -> IntArray:
        """First link of each link's orbit, [links]."""
        return np.asarray(self._link_images.min(axis=0))

    def of_links(self, chunk: IntArray, link: IntArray) -> IntArray:
        """Number the orbits of pairs (chunk, link), from 0 in the order of first members: [pairs]."""
        images = (
            self._chunk_images[g][chunk] * len(self._topology.links) + self._link_images[g][link] for g in self._all
        )
        return _numbered(images)

    def of_ranks(self, chunk: IntArray, rank: IntArray) -> IntArray:
        """Number the orbits of pairs (chunk, rank), from 0 in the order of first members: [pairs]."""
        ranks = np.array([g.ranks for g in self._group], dtype=np.int64)
        images = (self._chunk_images[g][chunk] * self._topology.rank_count + ranks[g][rank] for g in self._all)
        return _numbered(images)

    @property
    def _all(self) -> range:
        return range(len(self._group))

    @cached_property
    def _chunk_images(self) -> IntArray:
        return np.array([g.chunks for g in self._group], dtype=np.int64)

    @cached_property
    def _link_images(self) -> IntArray:
        """Images of all links under each element of the group, [elements, links]."""
        count = self._topology.rank_count
        index = np.full(count * count, -1, dtype=np.int64)
        source = np.array([k.source for k in self._topology.links], dtype=np.int64)
        target = np.array([k.target for k in self._topology.links], dtype=np.int64)
        index[source * count + target] = np.arange(len(source))
        found = []
        for element in self._group:
            ranks = np.array(element.ranks, dtype=np.int64)
            found.append(index[ranks[source] * count + ranks[target]])
        return np.array(found, dtype=np.int64)


def _numbered(images: Iterator[IntArray]) -> IntArray:
    least = next(images)
    for image in images:
        least = np.minimum(least, image)
    return np.unique(least, return_inverse=True)[1].astype(np.int64).ravel()
