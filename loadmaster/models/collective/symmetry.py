"""Symmetries of an instance: which permutations are automorphisms, and the group that they generate.

A permutation of ranks and chunks is an automorphism when it maps links onto links of equal cost, the links of every
resource onto the links of a resource, and every chunk onto one of equal size with the images of its sources, targets
and senders. A schedule may then be looked for among those that are their own image; no half of a symmetry is applied.

Source: [Shah23], section 5.4.1 (algorithm symmetry).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    """Refuse a generator that is not an automorphism.

    Raises:
        InputError: naming the link, resource or chunk and the image that breaks it.
    """
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
