"""Instances, which schedules are made for: chunks with where they are and where they must go, on a logical topology.

An :class:`Instance` is what formulations, heuristics, bounds and the checker see. It comes from a problem, a size and
a chunk count (:mod:`loadmaster.models.collective.collectives`), after the sketch has cut the topology down
(:mod:`loadmaster.models.collective.sketch`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from loadmaster.models.fields import Size
from loadmaster.models.topologies.topology import Link, Rank, Topology


@dataclass(frozen=True)
class Chunk:
    """An atomic piece of data.

    Attributes:
        sources: ranks that have it at the start; where it ``reduces``, those that have a part of the sum.
        targets: ranks that must have it, whole, at the end.
        senders: the only ranks that may send it to another node; None: any.
    """

    size_bytes: Size
    sources: tuple[Rank, ...]
    targets: tuple[Rank, ...]
    reduces: bool = False
    senders: frozenset[Rank] | None = None

    @property
    def goes_on(self) -> bool:
        """True for a sum with several targets: it is copied on once it is whole."""
        return self.reduces and len(self.targets) > 1

    @property
    def tree_ends(self) -> tuple[tuple[Rank, ...], tuple[Rank, ...]]:
        """Root of the chunk's tree (of a forest, the roots), and the ranks that must hang on it."""
        return (self.targets, self.sources) if self.reduces else (self.sources, self.targets)


@dataclass(frozen=True)
class Symmetry:
    """An automorphism: maps the instance onto itself, rank r to ``ranks[r]`` and chunk c to ``chunks[c]``."""

    ranks: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Instance:
    """One collective of one size on one logical topology.

    Attributes:
        generators: verified symmetries; a planner may look for schedules that have them all.
        connections: per switch, the wish for the number of links in use: +1 few (uc-min), -1 many (uc-max), 0 none
            (free).
    """

    topology: Topology
    chunks: tuple[Chunk, ...]
    generators: tuple[Symmetry, ...] = ()
    connections: tuple[int, ...] = ()

    @property
    def combines(self) -> bool:
        """True if any chunk is a sum."""
        return any(chunk.reduces for chunk in self.chunks)

    def may_send(self, chunk: int, link: Link) -> bool:
        """Return whether the sketch lets that chunk use that link."""
        senders = self.chunks[chunk].senders
        return senders is None or link.source in senders or not self.topology.crosses(link)

    @cached_property
    def usable_links(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the links that each chunk may use. Chunks with the same senders share one tuple."""
        found: dict[frozenset[int] | None, tuple[int, ...]] = {}
        for index, chunk in enumerate(self.chunks):
            if chunk.senders not in found:
                links = enumerate(self.topology.links)
                found[chunk.senders] = tuple(k for k, link in links if self.may_send(index, link))
        return tuple(found[chunk.senders] for chunk in self.chunks)

    def without_symmetry(self) -> Instance:
        """Copy the instance without its generators: planners may break its symmetries."""
        return replace(self, generators=())
