"""AllReduce moves every chunk at least 2 (p - 1) times between p parties.

Cut the ranks into p parts, each with both sources and targets of a sum. Messages that carry it from part to part number
2 (p - 1) or more. Take the first moment at which the ranks of one part together know of the parts of all sources: the
messages so far connect all p parts, which takes p - 1. Each of the other p - 1 parts, not knowing all yet, must be told
by one more message at least. (Gossip by one-way calls takes 2 p - 2 of them: Harary and Schwenk, 1974.)

The links into part i have capacity B_i together (gbps of their machines). So time >= 2 (p - 1) bytes / sum of B_i, and
one message_ns. The parts here are single ranks, and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from loadmaster.models.collective.bounds.network import Machine, Network

_HAIR_NS = 1e-3


def counting_bounds(network: Network) -> Iterator[tuple[int, str]]:
    """The bound for ranks, and for nodes."""
    ranks = [{r} for r in range(network.rank_count)]
    nodes = [set(ranks) for ranks in network.topology.ranks_of_node.values()]
    yield _bound_ns(network, ranks, network.entries), "parts to and fro between ranks"
    yield _bound_ns(network, nodes, network.node_entries.values()), "parts to and fro between nodes"


def _bound_ns(network: Network, parts: Sequence[set[int]], entries: Iterable[tuple[Machine, ...]]) -> int:
    machines = [machine for of_part in entries for machine in of_part]
    if len(parts) < 2 or not machines:
        return 0
    size_bytes = 0
    for chunk in network.instance.chunks:
        if chunk.reduces and all(
            part.intersection(chunk.sources) and part.intersection(chunk.targets) for part in parts
        ):
            size_bytes += chunk.size_bytes
    if not size_bytes:
        return 0
    # A resource may serve links into several parts; it works for all of them at its one speed.
    speed: dict[int, float] = {}
    for machine in machines:
        speed[machine.resource] = max(machine.gbps, speed.get(machine.resource, 0.0))
    total = 2 * (len(parts) - 1) * size_bytes / math.fsum(speed.values())
    return min(machine.message_ns for machine in machines) + math.ceil(total - _HAIR_NS)
