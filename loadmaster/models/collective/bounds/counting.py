"""AllReduce moves every chunk at least 2 (p - 1) times between p parties.

Cut the ranks into p parts, each with both sources and targets of a sum. Messages that carry it from part to part number
2 (p - 1) or more. Take the first moment at which the ranks of one part together know of the parts of all sources: the
messages so far connect all p parts, which takes p - 1. Each of the other p - 1 parts, not knowing all yet, must be told
by one more message at least. (Gossip by one-way calls takes 2 p - 2 of them: Harary and Schwenk, 1974.)

The links into part i have capacity B_i together (gbps of their machines), and what counts has left them a latency
before the end. So time >= 2 (p - 1) bytes / sum of B_i, one message_ns and one latency. The parts here are single
ranks, and nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from loadmaster.models.collective.bounds.network import Machine, Network

_HAIR_NS = 1e-3


def counting_bounds(network: Network) -> Iterator[tuple[int, str]]:
    """The bound for ranks, and for nodes."""
    links = [network.topology.links[k] for k in network.used_links]
    for between, ns in least_traffic(network):
        counted = [k for k in links if between == "ranks" or network.topology.crosses(k)]
        beside_ns = min(k.message_ns for k in counted) + min(k.latency_ns for k in counted)
        yield beside_ns + math.ceil(ns - _HAIR_NS), f"parts to and fro between {between}"


def least_traffic(network: Network) -> Iterator[tuple[str, float]]:
    """The bytes alone, in nanoseconds, where there are any."""
    ranks = [{r} for r in range(network.rank_count)]
    nodes = [set(ranks) for ranks in network.topology.ranks_of_node.values()]
    for between, parts, entries in (
        ("ranks", ranks, network.entries),
        ("nodes", nodes, list(network.node_entries.values())),
    ):
        size_bytes = _size_of_sums(network, parts)
        if size_bytes and len(parts) > 1:
            yield between, 2 * (len(parts) - 1) * size_bytes / _speed(entries)


def _size_of_sums(network: Network, parts: Sequence[set[int]]) -> int:
    """Bytes of the sums that every part has sources and targets of."""
    return sum(
        chunk.size_bytes
        for chunk in network.instance.chunks
        if chunk.reduces
        and all(part.intersection(chunk.sources) and part.intersection(chunk.targets) for part in parts)
    )


def _speed(entries: Iterable[Sequence[Machine]]) -> float:
    """GB/s of all machines. A resource may serve several parts; it works for all of them at its one speed."""
    speed: dict[int, float] = {}
    for of_part in entries:
        for machine in of_part:
            speed[machine.resource] = max(machine.gbps, speed.get(machine.resource, 0.0))
    return math.fsum(speed.values())
