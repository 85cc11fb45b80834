"""Topologies: ranks, directed links, and the resources that links hold while they carry a message.

A send of b bytes over a link that starts at t holds every resource of the link for

    occupancy = message_ns + b / gbps      (rounded up to whole nanoseconds; 1 GB/s is one byte per nanosecond)

and is on its target at t + latency_ns + occupancy. A resource (a wire, a port of a switch, a NIC, perhaps shared by
several ranks) carries one message at a time. Two published conventions are cases of this: TACCL's alpha-beta cost is
message_ns = alpha, latency_ns = 0 (a link is busy for alpha too); the pipelined form is message_ns = 0, latency_ns =
alpha.

Source: [Shah23], sections 5.3 and 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from loadmaster.errors import InputError
from loadmaster.models.fields import Bounds, Index, Name

# A year: a time above it is a mistake in units.
LARGEST_NS = 32 * 10**15
LARGEST_GBPS = 1e9
# More ranks, or more links, than any topology in a plan's reach has.
LARGEST_RANK_COUNT = 4096
LARGEST_LINK_COUNT = 1 << 18

Rank = Annotated[int, Bounds(ge=0, lt=LARGEST_RANK_COUNT)]
_MostRanks, _MostLinks = Bounds(max_length=LARGEST_RANK_COUNT), Bounds(max_length=LARGEST_LINK_COUNT)


@dataclass(frozen=True)
class Link:
    """Directed link from one rank to another.

    Attributes:
        latency_ns: from the end of the occupancy to the arrival.
        message_ns: occupancy of every message, whatever its size.
        gbps: bytes per nanosecond.
        resources: indices into the topology's resources, ascending; held while a message is sent.
        switch: index into the topology's switches where the link is a way through one.
    """

    source: Rank
    target: Rank
    latency_ns: int
    message_ns: int
    gbps: float
    resources: tuple[Index, ...]
    switch: Index | None = None

    def occupancy_ns(self, size_bytes: int) -> int:
        """Time for which a message of that size holds the link's resources, ns."""
        # Six decimals are kept, so that a cost that is whole by construction is not rounded up by a float's last bit.
        return self.message_ns + math.ceil(round(size_bytes / self.gbps, 6))

    def transfer_ns(self, size_bytes: int) -> int:
        """Time from the start of a send of that size to its arrival, ns."""
        return self.latency_ns + self.occupancy_ns(size_bytes)


@dataclass(frozen=True)
class Topology:
    """Topology of a network: ranks, each on the node ``node_of``, links and resources. ``links``: at most one from one
    rank to another. ``resources``: names, each of capacity one. ``switches``: the ranks around each."""

    name: Name
    node_of: Annotated[tuple[Index, ...], _MostRanks]
    links: Annotated[tuple[Link, ...], _MostLinks]
    resources: Annotated[tuple[str, ...], _MostLinks]
    switches: Annotated[tuple[tuple[Rank, ...], ...], _MostRanks] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def rank_count(self) -> int:
        return len(self.node_of)

    @property
    def node_count(self) -> int:
        return len(set(self.node_of))

    @cached_property
    def link_between(self) -> Mapping[tuple[int, int], int]:
        """Index of the link from one rank to another, by both ranks."""
        return {(link.source, link.target): index for index, link in enumerate(self.links)}

    @cached_property
    def out_links(self) -> Sequence[tuple[int, ...]]:
        """Indices of the links that leave each rank."""
        return self._by_rank([link.source for link in self.links])

    @cached_property
    def in_links(self) -> Sequence[tuple[int, ...]]:
        """Indices of the links that arrive at each rank."""
        return self._by_rank([link.target for link in self.links])

    @cached_property
    def ranks_of_node(self) -> Mapping[int, tuple[int, ...]]:
        """Ranks of each node, ascending."""
        nodes: dict[int, list[int]] = {}
        for rank, node in enumerate(self.node_of):
            nodes.setdefault(node, []).append(rank)
        return {node: tuple(ranks) for node, ranks in nodes.items()}

    def crosses(self, link: Link) -> bool:
        """Return whether a link leaves its node."""
        return self.node_of[link.source] != self.node_of[link.target]

    def reversed(self) -> Topology:
        """Turn every link the other way, with the same index, costs and resources, for time reversal."""
        links = tuple(
            Link(k.target, k.source, k.latency_ns, k.message_ns, k.gbps, k.resources, k.switch) for k in self.links
        )
        return Topology(self.name, self.node_of, links, self.resources, self.switches)

    def _by_rank(self, ranks: Sequence[int]) -> Sequence[tuple[int, ...]]:
        found: list[list[int]] = [[] for _ in self.node_of]
        for index, rank in enumerate(ranks):
            found[rank].append(index)
        return tuple(tuple(indices) for indices in found)


def _check(topology: Topology) -> None:
    """Refuse an invalid topology: ranks and resources out of range, invalid costs, parallel links."""
    ranks = range(topology.rank_count)
    if not ranks:
        raise InputError("topology.node_of", [], "names no rank", "Give the node of each rank.")
    seen: set[tuple[int, int]] = set()
    for index, link in enumerate(topology.links):
        field = f"topology.links[{index}]"
        for end, rank in (("source", link.source), ("target", link.target)):
            if rank not in ranks:
                raise InputError(f"{field}.{end}", rank, "is no rank", f"Ranks are 0 to {len(ranks) - 1}.")
        if link.source == link.target:
            raise InputError(f"{field}.target", link.target, "is its own source", "Leave the link out.")
        if (link.source, link.target) in seen:
            raise InputError(field, [link.source, link.target], "is there twice", "Join parallel links into one.")
        seen.add((link.source, link.target))
        for cost, ns in (("latency_ns", link.latency_ns), ("message_ns", link.message_ns)):
            if not 0 <= ns <= LARGEST_NS:
                raise InputError(f"{field}.{cost}", ns, "is no time", "Give nanoseconds, at least 0.")
        if not 0 < link.gbps <= LARGEST_GBPS:
            raise InputError(f"{field}.gbps", link.gbps, "is no bandwidth", "Give GB/s, more than 0.")
        if not link.resources:
            raise InputError(f"{field}.resources", [], "is empty", "A link holds at least its own wire.")
        for resource in link.resources:
            if resource not in range(len(topology.resources)):
                raise InputError(f"{field}.resources", resource, "is no resource", "Give indices into resources.")
    for index, ranks_around in enumerate(topology.switches):
        for rank in ranks_around:
            if rank not in ranks:
                raise InputError(f"topology.switches[{index}]", rank, "is no rank", f"Ranks end at {len(ranks) - 1}.")
