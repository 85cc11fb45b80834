"""The plainest schedule: every chunk along its shortest ways, one send after the other, then pulled together.

It takes no account of what else is under way and is beaten almost everywhere; on small and odd topologies it is the
floor that list scheduling, which is greedy, must not fall through.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx

from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.prune import retime


def sequential(instance: Instance, usable: Sequence[Sequence[int]] | None = None) -> tuple[Send, ...] | None:
    """Send one chunk after the other, retimed; None where a target cannot be reached.

    Args:
        usable: per chunk the links it may use; None: as the instance says.
    """
    links = instance.topology.links
    sends: list[Send] = []
    now = 0
    # Chunks of one size, from the same ranks over the same links, go the same ways.
    known: dict[tuple[int, int, tuple[int, ...]], dict[int, list[int]]] = {}
    for c, chunk in enumerate(instance.chunks):
        allowed = (usable or instance.usable_links)[c]
        alike = id(allowed), chunk.size_bytes, chunk.sources
        if alike not in known:
            known[alike] = _ways(instance, chunk, allowed)
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


def _ways(instance: Instance, chunk: Chunk, allowed: Sequence[int]) -> dict[int, list[int]]:
    """Find the shortest way of a chunk to each rank that can be reached."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(instance.topology.rank_count))
    for k in allowed:
        link = instance.topology.links[k]
        graph.add_edge(link.source, link.target, ns=link.transfer_ns(chunk.size_bytes))
    found: dict[int, list[int]] = nx.multi_source_dijkstra_path(graph, set(chunk.sources), weight="ns")
    return found
