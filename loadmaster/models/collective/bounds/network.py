"""Base of all bounds of an instance: distances, covers of cuts by resources, and ranks that look the same.

Everything here holds for every schedule, however it merges chunks: the cost of a message is counted only where a proof
says that at least one message is sent, and bytes at the bandwidth of the fastest link that holds a resource.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.instance import Instance

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Divisible chunks are counted in that many units or a little more: what is lost is about a unit for each message.
_FEWEST_UNITS = 256
# Colours of ranks are told apart by the links so many steps around.
_LOOKS = 8
# No way. Sums of three of them stay within 64 bits.
NEVER = 2**60
# Quotients may come out above what they are.
_HAIR_NS = 1e-3


@dataclass(frozen=True)
class Machine:
    """A resource as one machine of a cut: every link of the cut is held by one machine, and each works alone. It stands
    for the ``links`` of these indices: ``message_ns`` is their least cost of a message, ``gbps`` the fastest's."""

    resource: int
    links: tuple[int, ...]
    message_ns: int
    gbps: float

    def bytes_ns(self, message_bytes: IntArray) -> IntArray:
        """Time of so many bytes, without the cost of a message."""
        return np.ceil(message_bytes / self.gbps - _HAIR_NS).astype(np.int64)


class Network:
    """An instance, with what is asked of it again and again. ``divisible``: bounds hold for chunks cut into any number
    of parts, of one byte at least. ``kind_of``: [chunks] index of the chunk's kind, which is its size and its
    senders."""

    def __init__(self, instance: Instance, *, divisible: bool = False) -> None:
        self.divisible = divisible
        # A chunk of no bytes is everywhere from the start.
        self.instance = instance = replace(instance, chunks=tuple(c for c in instance.chunks if c.size_bytes))
        self.topology = instance.topology
        self.rank_count = instance.topology.rank_count
        kinds: dict[tuple[int, frozenset[int] | None], int] = {}
        self.kind_of = np.array(
            [kinds.setdefault((c.size_bytes, c.senders), len(kinds)) for c in instance.chunks], dtype=np.int64
        )
        self._kinds = list(kinds)
        self.first_of_kind = [int(np.flatnonzero(self.kind_of == kind)[0]) for kind in range(len(kinds))]

    @cached_property
    def size_bytes(self) -> IntArray:
        """Bytes of each chunk, [chunks]."""
        return np.array([c.size_bytes for c in self.instance.chunks], dtype=np.int64)

    def least_bytes(self, size_bytes: int) -> int:
        """Bytes that travel as one at least, of a chunk of that size: all, or one if chunks are divisible."""
        return 1 if self.divisible else size_bytes

    def units_of(self, chunks: BoolArray) -> tuple[int, IntArray]:
        """Measure chunks in units: the bytes of the smallest, and the least bytes of a message of 1, 2 .. units.
        Divisible chunks are so many units of equal size that each chunk is some of them, or nearly."""
        sizes = np.sort(self.size_bytes[chunks])
        if not self.divisible:
            return int(sizes[0]), np.cumsum(sizes)
        total, count = int(sizes.sum()), len(sizes) * -(-_FEWEST_UNITS // len(sizes))
        unit_bytes = max(1, total // count)
        return unit_bytes, np.arange(min(count, total // unit_bytes), dtype=np.int64) * unit_bytes + 1

    @cached_property
    def sources(self) -> BoolArray:
        """Mask of the ranks where each chunk starts, [chunks, ranks]."""
        return self._membership([c.sources for c in self.instance.chunks])

    @cached_property
    def targets(self) -> BoolArray:
        """Mask of the ranks where each chunk must end, [chunks, ranks]."""
        return self._membership([c.targets for c in self.instance.chunks])

    @cached_property
    def reduces(self) -> BoolArray:
        """Mask of the chunks that are sums, [chunks]."""
        return np.array([c.reduces for c in self.instance.chunks], dtype=bool)

    @cached_property
    def node_of(self) -> IntArray:
        """Node of each rank, [ranks]."""
        return np.array(self.topology.node_of, dtype=np.int64)

    @cached_property
    def distance_ns(self) -> IntArray:
        """Least time of a lone chunk (divisible: a lone byte) of a kind between ranks, [kinds, ranks, ranks]."""
        found = np.full((len(self._kinds), self.rank_count, self.rank_count), NEVER, dtype=np.int64)
        for kind, (size_bytes, _) in enumerate(self._kinds):
            matrix = found[kind]
            np.fill_diagonal(matrix, 0)
            for k in self.instance.usable_links[self.first_of_kind[kind]]:
                link = self.topology.links[k]
                matrix[link.source, link.target] = link.transfer_ns(self.least_bytes(size_bytes))
            for via in range(self.rank_count):
                np.minimum(matrix, matrix[:, via, None] + matrix[None, via, :], out=matrix)
            np.minimum(matrix, NEVER, out=matrix)
        return found

    @cached_property
    def usable(self) -> BoolArray:
        """Mask of the links that chunks of each kind may use, [kinds, links]."""
        found = np.zeros((len(self._kinds), len(self.topology.links)), dtype=bool)
        for kind, chunk in enumerate(self.first_of_kind):
            found[kind, list(self.instance.usable_links[chunk])] = True
        return found

    def cover(self, links: Iterable[int]) -> tuple[Machine, ...]:
        """Cover links by few machines. Any choice gives a valid bound; the resource with most links left goes first."""
        left = set(links)
        holders: dict[int, set[int]] = {}
        for k in left:
            for resource in self.topology.links[k].resources:
                holders.setdefault(resource, set()).add(k)
        machines = []
        # What a resource holds only becomes less: one that holds less than when it was put in goes back in.
        most = [(-len(held), resource) for resource, held in holders.items()]
        heapq.heapify(most)
        while left:
            known, resource = heapq.heappop(most)
            if -known != len(holders[resource]):
                heapq.heappush(most, (-len(holders[resource]), resource))
                continue
            taken = holders.pop(resource)
            members = [self.topology.links[k] for k in taken]
            machines.append(
                Machine(
                    resource,
                    tuple(sorted(taken)),
                    min(k.message_ns for k in members),
                    max(k.gbps for k in members),
                )
            )
            left -= taken
            # Only resources of links that were taken hold fewer now.
            for other in {r for k in taken for r in self.topology.links[k].resources if r in holders}:
                holders[other] -= taken
        return tuple(machines)

    @cached_property
    def used_links(self) -> tuple[int, ...]:
        """Links that some chunk may use."""
        return tuple(int(k) for k in np.flatnonzero(self.usable.any(axis=0)))

    @cached_property
    def entries(self) -> Sequence[tuple[Machine, ...]]:
        """Machines of the links that arrive at each rank."""
        used = set(self.used_links)
        return [self.cover(k for k in links if k in used) for links in self.topology.in_links]

    @cached_property
    def exits(self) -> Sequence[tuple[Machine, ...]]:
        """Machines of the links that leave each rank."""
        used = set(self.used_links)
        return [self.cover(k for k in links if k in used) for links in self.topology.out_links]

    @cached_property
    def node_entries(self) -> Mapping[int, tuple[Machine, ...]]:
        """Machines of the links that arrive at each node from others."""
        return self._at_nodes([(k, self.topology.node_of[self.topology.links[k].target]) for k in self.used_links])

    @cached_property
    def node_exits(self) -> Mapping[int, tuple[Machine, ...]]:
        """Machines of the links that leave each node for others."""
        return self._at_nodes([(k, self.topology.node_of[self.topology.links[k].source]) for k in self.used_links])

    def _at_nodes(self, links: Sequence[tuple[int, int]]) -> Mapping[int, tuple[Machine, ...]]:
        found: dict[int, list[int]] = {node: [] for node in self.topology.ranks_of_node}
        for k, node in links:
            if self.topology.crosses(self.topology.links[k]):
                found[node].append(k)
        return {node: self.cover(of) for node, of in found.items()}

    @cached_property
    def alike(self) -> IntArray:
        """Colours of the ranks, [ranks], by refinement from the bytes that each starts and ends with. Bounds are looked
        for at one rank of each colour: the largest over some ranks is a bound, whatever the others give."""
        start = [
            (int(self.size_bytes[self.sources[:, r]].sum()), int(self.size_bytes[self.targets[:, r]].sum()))
            for r in range(self.rank_count)
        ]
        colour = numbered(start)
        links = [self.topology.links[k] for k in self.used_links]
        costs = numbered([(k.latency_ns, k.message_ns, k.gbps, self.topology.crosses(k)) for k in links])
        ends = [(cost, k.source, k.target) for cost, k in zip(costs, links, strict=True)]
        count = len(set(colour))
        for _ in range(_LOOKS):
            around: list[list[tuple[int, int, int]]] = [[] for _ in colour]
            for cost, source, target in ends:
                around[target].append((0, cost, colour[source]))
                around[source].append((1, cost, colour[target]))
            colour = numbered([(c, tuple(sorted(a))) for c, a in zip(colour, around, strict=True)])
            if len(set(colour)) == count:
                break
            count = len(set(colour))
        return np.array(colour, dtype=np.int64)

    @cached_property
    def typical_ranks(self) -> tuple[int, ...]:
        """The first rank of each colour."""
        return tuple(int(r) for r in np.unique(self.alike, return_index=True)[1])

    @cached_property
    def typical_nodes(self) -> tuple[int, ...]:
        """The first of the nodes whose ranks have the same colours."""
        first: dict[tuple[int, ...], int] = {}
        for node, ranks in self.topology.ranks_of_node.items():
            first.setdefault(tuple(sorted(int(self.alike[r]) for r in ranks)), node)
        return tuple(first.values())

    def _membership(self, ranks: Sequence[Sequence[int]]) -> BoolArray:
        found = np.zeros((len(ranks), self.rank_count), dtype=bool)
        for row, members in enumerate(ranks):
            found[row, list(members)] = True
        return found


def numbered(values: Sequence[object]) -> list[int]:
    """Each value's number in the order in which values appear."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def first_allowed_ns(refuted: Callable[[int], bool], refuted_ns: int) -> int:
    """The first time that is not refuted, after one that is; NEVER if later. After it none may be refuted."""
    low, high = refuted_ns, 2 * refuted_ns + 1
    while high < NEVER and refuted(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return min(high, NEVER)
