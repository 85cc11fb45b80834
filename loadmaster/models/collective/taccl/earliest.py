"""Ordered hops, some of which travel together, each as early as its order allows: from decisions to timed sends."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx

from loadmaster.models.collective.plan import Send
from loadmaster.models.collective.taccl.ordering import Ordered

# Hops of one link that travel as one message, in order.
Message = tuple[int, ...]


def alone(ordered: Ordered) -> tuple[Message, ...]:
    """Make every hop a message of its own."""
    return tuple((h,) for h in ordered.sequence)


def starts(ordered: Ordered, messages: Sequence[Message]) -> tuple[int, ...]:
    """Earliest start of each message.

    Raises:
        networkx.NetworkXUnfeasible: a message waits for itself: its chunks cannot travel together in this order.
    """
    links = ordered.instance.topology.links
    message_of = {h: m for m, hops in enumerate(messages) for h in hops}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(messages)))
    # Weights: from the start of one message to the earliest start of the other.
    for m, hops in enumerate(messages):
        for h in hops:
            for earlier in ordered.hops[h].after:
                before = message_of[earlier]
                weight_ns = links[ordered.hops[earlier].link].transfer_ns(_size_bytes(ordered, messages[before]))
                _require(graph, before, m, weight_ns)
            for earlier in ordered.before[h]:
                before = message_of[earlier]
                if before != m:
                    weight_ns = links[ordered.hops[earlier].link].occupancy_ns(_size_bytes(ordered, messages[before]))
                    _require(graph, before, m, weight_ns)
    found = [0] * len(messages)
    for m in nx.topological_sort(graph):
        for later, data in graph[m].items():
            found[later] = max(found[later], found[m] + data["ns"])
    return tuple(found)


def sends(ordered: Ordered, messages: Sequence[Message]) -> tuple[Send, ...]:
    """The schedule, as a plan holds it. Raises as :func:`starts` does."""
    chunks, links, found = ordered.instance.chunks, ordered.instance.topology.links, []
    for start_ns, message in zip(starts(ordered, messages), messages, strict=True):
        link = links[ordered.hops[message[0]].link]
        carried = tuple(sorted(ordered.hops[h].chunk for h in message))
        found.append(Send(start_ns, link.source, link.target, carried, chunks[carried[0]].reduces))
    return tuple(sorted(found, key=lambda s: (s.start_ns, s.source, s.target)))


def time_ns(ordered: Ordered, messages: Sequence[Message]) -> int:
    """Arrival of the last message. Raises as :func:`starts` does."""
    links = ordered.instance.topology.links
    arrivals = (
        start_ns + links[ordered.hops[message[0]].link].transfer_ns(_size_bytes(ordered, message))
        for start_ns, message in zip(starts(ordered, messages), messages, strict=True)
    )
    return max(arrivals, default=0)


def runs_within(stretch: Sequence[int], limit: int) -> list[Message]:
    """All runs of at most ``limit`` neighbours of a stretch of hops."""
    ends = itertools.product(range(len(stretch)), range(1, limit + 1))
    return [tuple(stretch[first : first + length]) for first, length in ends if first + length <= len(stretch)]


def _size_bytes(ordered: Ordered, message: Message) -> int:
    return sum(ordered.instance.chunks[ordered.hops[h].chunk].size_bytes for h in message)


def _require(graph: nx.DiGraph, before: int, later: int, ns: int) -> None:
    known = graph.get_edge_data(before, later)
    graph.add_edge(before, later, ns=ns if known is None else max(ns, known["ns"]))
