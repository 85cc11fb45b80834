"""Messages whose images under symmetries are all others: half a million are planned as a few thousand.

A group of symmetries takes every chunk to as many others as it has elements. So one chunk of each orbit stands for all:
its messages are made and ordered, and all others are their images, at the same times. While they are ordered, a
resource stands for its whole orbit; that is right where no two images of a link share a resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import networkx as nx
import numpy as np

from loadmaster.models.collective.instance import Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.symmetry import closure, holders_of
from loadmaster.models.topologies.topology import Topology

# Elements of a group times chunks: beyond it, images take as long as what they save.
_MOST_IMAGES = 1 << 23


@dataclass(frozen=True)
class Images:
    """Representatives of chunks and resources under the symmetries of an instance: ``group`` has the identity first,
    ``chunks`` the first chunk of each orbit, ``resource`` [resources] the one that stands for each."""

    group: tuple[Symmetry, ...]
    chunks: frozenset[int]
    resource: tuple[int, ...]

    def all_of(self, sends: Sequence[Send]) -> tuple[Send, ...]:
        """Sends of one chunk each with all their images, in order."""
        found: list[Send] = []
        for g in self.group:
            ranks, chunks = g.ranks, g.chunks
            found += [
                Send(
                    s.start_ns, ranks[s.source], ranks[s.target], tuple(sorted(chunks[c] for c in s.chunks)), s.combines
                )
                for s in sends
            ]
        found.sort(key=attrgetter("start_ns", "source", "target"))
        return tuple(found)


def images_of(instance: Instance) -> Images | None:
    """Build the images under an instance's symmetries; None without any, or if one fixes a chunk or they collide."""
    topology, count = instance.topology, len(instance.chunks)
    if not instance.generators or topology.rank_count * count > _MOST_IMAGES:
        return None
    group = closure(instance.generators, topology.rank_count, count)
    images = np.sort(np.array([g.chunks for g in group], dtype=np.int64), axis=0)
    if (images[1:] == images[:-1]).any() or not orbits_share_nothing(topology, [g.ranks for g in group]):
        return None
    return Images(group, frozenset(images[0].tolist()), _resources(topology, instance.generators))


def representatives(instance: Instance, images: Images) -> Instance:
    """Reduce an instance to the chunks that stand for all; others have no bytes."""
    chunks = (c if index in images.chunks else replace(c, size_bytes=0) for index, c in enumerate(instance.chunks))
    return replace(instance, chunks=tuple(chunks), generators=())


def orbits_share_nothing(topology: Topology, elements: Sequence[Sequence[int]]) -> bool:
    """Return whether all images of every link under some permutations of ranks can be in use at one time."""
    seen: set[int] = set()
    for index, link in enumerate(topology.links):
        if index not in seen:
            orbit = {topology.link_between[ranks[link.source], ranks[link.target]] for ranks in elements}
            held = [resource for k in orbit for resource in topology.links[k].resources]
            if len(held) != len(set(held)):
                return False
            seen |= orbit
    return True


def _resources(topology: Topology, generators: Sequence[Symmetry]) -> tuple[int, ...]:
    """Representative of each resource: one of its orbit. Resources that the same links hold count as one."""
    holders = [frozenset(links) for links in holders_of(topology)]
    known: dict[frozenset[int], int] = {}
    joined = nx.utils.UnionFind(range(len(holders)))
    for resource, links in enumerate(holders):
        joined.union(known.setdefault(links, resource), resource)
    for generator in generators:
        image = [topology.link_between[generator.ranks[k.source], generator.ranks[k.target]] for k in topology.links]
        for links, resource in known.items():
            joined.union(resource, known[frozenset(image[k] for k in links)])
    return tuple(joined[resource] for resource in range(len(holders)))
