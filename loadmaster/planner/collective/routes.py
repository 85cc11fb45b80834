"""Routes of chunks that move, one for each, so that no resource gets far more than its share.

Shortest ways alone crowd: a NIC next to the target looks as near as seven others. So chunks are routed one after the
other, those that have far to go first (they also go first once they are scheduled), each along the way that raises the
work of the busiest resource of all least; of those, along the one that is shortest when every link costs its transfer
and a share of the work that its busiest resource has by then. A chunk and its images under the symmetries are routed as
one.

The plainest schedule (:func:`sequential`) sends every chunk along its shortest ways, one send after the other, then
pulled together. It is beaten almost everywhere; on small and odd topologies it is the floor that list scheduling, which
is greedy, must not fall through.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise

import networkx as nx

from loadmaster.models.collective.instance import Instance, Symmetry
from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Link, Topology
from loadmaster.planner.collective.prune import retime


def balanced_routes(
    topology: Topology,
    chunks: Mapping[int, tuple[int, int, int, frozenset[int]]],
    far_ns: Mapping[int, float],
    group: Sequence[Symmetry],
    share: float,
) -> dict[int, tuple[int, ...]]:
    """Route each chunk: the links it takes, in order.

    Args:
        chunks: chunk to (bytes, source, target, links it may use); all images of a chunk are among them.
        far_ns: per chunk how far it has to go.
        share: the part of a resource's work that counts as waiting.
    """
    orbits: list[int] = []
    seen: set[int] = set()
    for chunk in chunks:
        if chunk not in seen:
            orbits.append(chunk)
            seen.update(g.chunks[chunk] for g in group)
    load = [0.0] * len(topology.resources)
    routes: dict[int, tuple[int, ...]] = {}
    for chunk in sorted(orbits, key=lambda chunk: -far_ns[chunk]):
        size_bytes, source, target, links = chunks[chunk]
        routes[chunk] = _shortest(topology, source, target, links, size_bytes, load, share)
        for k in routes[chunk]:
            _add(topology, topology.links[k], group, load, size_bytes)
    found: dict[int, tuple[int, ...]] = {}
    for chunk in orbits:
        ends = [(topology.links[k].source, topology.links[k].target) for k in routes[chunk]]
        for g in group:
            found.setdefault(g.chunks[chunk], tuple(topology.link_between[g.ranks[a], g.ranks[b]] for a, b in ends))
    return found


def _add(topology: Topology, link: Link, group: Sequence[Symmetry], load: list[float], size_bytes: int) -> None:
    for g in group:
        image = topology.links[topology.link_between[g.ranks[link.source], g.ranks[link.target]]]
        for resource in image.resources:
            load[resource] += size_bytes / link.gbps


def _shortest(
    topology: Topology,
    source: int,
    target: int,
    links: frozenset[int],
    size_bytes: int,
    load: Sequence[float],
    share: float,
) -> tuple[int, ...]:
    """Find the way that raises the most work least, then the shortest; empty without any way."""
    highest = max(load)
    best = {source: (0.0, 0.0)}
    came: dict[int, int] = {}
    queue = [(0.0, 0.0, source)]
    while queue:
        raised, so_far, rank = heapq.heappop(queue)
        if rank == target:
            break
        if (raised, so_far) > best[rank]:
            continue
        for k in topology.out_links[rank]:
            if k not in links:
                continue
            link = topology.links[k]
            waiting = max(load[resource] for resource in link.resources)
            raises = max(raised, waiting + size_bytes / link.gbps - highest)
            length = so_far + link.transfer_ns(size_bytes) + share * waiting + 1.0
            if (raises, length) < best.get(link.target, (float("inf"), 0.0)):
                best[link.target] = raises, length
                came[link.target] = k
                heapq.heappush(queue, (raises, length, link.target))
    way: list[int] = []
    while target in came and target != source:
        way.append(came[target])
        target = topology.links[came[target]].source
    return tuple(reversed(way))


class ShortestWays:
    """Shortest ways between ranks over the ``usable`` links of each chunk; chunks that may use the same links share
    them."""

    def __init__(self, instance: Instance, usable: Sequence[Sequence[int]]) -> None:
        self._instance, self._usable = instance, usable
        self._links: dict[int, frozenset[tuple[int, int]]] = {}
        self._ways: dict[int, dict[int, dict[int, list[int]]]] = {}

    def way(self, chunk: int, source: int, target: int) -> tuple[int, ...]:
        """Find the ranks of the shortest way of a chunk: both, where a link joins them; none without any way."""
        usable, links = self._usable[chunk], self._instance.topology.links
        if id(usable) not in self._links:
            self._links[id(usable)] = frozenset((links[k].source, links[k].target) for k in usable)
        if (source, target) in self._links[id(usable)]:
            return source, target
        ways = self._ways.setdefault(id(usable), {})
        if source not in ways:
            graph = _graph(self._instance, chunk, usable)
            ways[source] = nx.single_source_dijkstra_path(graph, source, weight="ns") if source in graph else {}
        return tuple(ways[source].get(target, ()))


def _graph(instance: Instance, chunk: int, usable: Sequence[int]) -> nx.DiGraph:
    """Graph of the links that a chunk may use, with its time ``ns`` over each."""
    graph = nx.DiGraph()
    for k in usable:
        link = instance.topology.links[k]
        graph.add_edge(link.source, link.target, ns=link.transfer_ns(instance.chunks[chunk].size_bytes))
    return graph


def sequential(instance: Instance, usable: Sequence[Sequence[int]] | None = None) -> tuple[Send, ...] | None:
    """Send one chunk after the other, retimed; None where a target cannot be reached. ``usable``: per chunk the links
    it may use; None: as the instance says."""
    links = instance.topology.links
    sends: list[Send] = []
    now = 0
    # Chunks of one size, from the same ranks over the same links, go the same ways.
    known: dict[tuple[int, int, tuple[int, ...]], dict[int, list[int]]] = {}
    for c, chunk in enumerate(instance.chunks):
        allowed = (usable or instance.usable_links)[c]
        alike = id(allowed), chunk.size_bytes, chunk.sources
        if alike not in known:
            graph = _graph(instance, c, allowed)
            graph.add_nodes_from(range(instance.topology.rank_count))
            known[alike] = nx.multi_source_dijkstra_path(graph, set(chunk.sources), weight="ns")
        ways = known[alike]
        has = set(chunk.sources)
        for target in chunk.targets if chunk.size_bytes else ():
            if target not in ways:
                return None
            for source, rank in pairwise(ways[target]):
                if rank not in has:
                    sends.append(Send(now, source, rank, (c,)))
                    now += links[instance.topology.link_between[source, rank]].transfer_ns(chunk.size_bytes)
                    has.add(rank)
    # Each rank gets a chunk once, on the way to a target: nothing is there to prune.
    return retime(instance, sends)
