"""The plainest schedule: every chunk along its shortest ways, one send after the other, then pulled together.

It takes no account of what else is under way and is beaten almost everywhere; on small and odd topologies it is the
floor that list scheduling, which is greedy, must not fall through.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.prune import prune, retime


def sequential(instance: Instance, usable: Sequence[Sequence[int]] | None = None) -> tuple[Send, ...] | None:
    """One send after the other, pruned and retimed; None where a target cannot be reached.

    Args:
        usable: per chunk the links it may use; None: as the instance says.
    """
    links = instance.topology.links
    sends: list[Send] = []
    now = 0
    for c, chunk in enumerate(instance.chunks):
        graph = nx.DiGraph()
        graph.add_nodes_from(range(instance.topology.rank_count))
        for k in (usable or instance.usable_links)[c]:
            graph.add_edge(links[k].source, links[k].target, ns=links[k].transfer_ns(chunk.size_bytes))
        ways = nx.multi_source_dijkstra_path(graph, set(chunk.sources), weight="ns")
        has = set(chunk.sources)
        for target in chunk.targets if chunk.size_bytes else ():
            if target not in ways:
                return None
            for source, rank in pairwise(ways[target]):
                if rank not in has:
                    sends.append(Send(now, source, rank, (c,)))
                    now += graph.edges[source, rank]["ns"]
                    has.add(rank)
    return retime(instance, prune(instance, sends))
