"""The last chunks that enter a node over its only entry have yet to get to the other ranks.

Let D be chunks (copies) that start outside node U, where every link into U that they may use holds one resource p, and
let these links have one latency. Let M be the last message over p with a chunk that is new in U, n of them, to rank e;
it arrives at b. Until its start U had the others of D alone, so b >= tau[U, |D| - n] + occupancy(n), and b >= tau[U,
|D|], by the growth engine (of n = |D| it is latency + occupancy). Any other message M' that brings one of the n into U
takes its turn on p after M (before M it would be new), so j of them, whatever their targets, come so at b +
occupancy(j) or later.

So from b on the n grow in U as units that start at e, and outside, from where p brings them again: the growth engine
says when a machine of local links may have brought a rank 1, 2 .. of them. Let W be the ranks of U other than e that
need all of D, w of them.

(1) Together they need w n: each has what its machines of local links bring, n at most; and p counts for all that it
    brings again. So time >= b + the (w n)-th smallest of these times, the first n of each rank and those of p together.
(2) Each rank to which p brings some again takes a message of it. Let these be r of W: time >= b + r occupancy(1), and
    the others have n over local links: time >= b + the (r + 1)-th last of the times at which ranks of W may. So time >=
    b + the greater of the two, for some r.

So time is at least the greater of (1) and (2), for some n and e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units, entered_nodes
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.topology import Link, Topology

# Nodes of more ranks would take longer than the bound is worth.
_MOST_RANKS = 32


def only_entry_ns(network: Network, growth: Growth, units: Units, chunks: BoolArray, wanting: BoolArray) -> int:
    """The bound of one node of each look that D starts outside of.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        chunks: [chunks] the set D.
        wanting: [ranks] that need all of D.
    """
    best = 0
    for node, together in entered_nodes(network, units, wanting):
        machines = [m for m in network.node_entries[node] if any(units.limit[k] for k in m.links)]
        links = [network.topology.links[k] for m in machines for k in m.links if units.limit[k]]
        many = len(network.topology.ranks_of_node[node]) > _MOST_RANKS
        if many or len(machines) != 1 or len({k.latency_ns for k in links}) > 1:
            continue
        (entry,) = machines
        known_ns = np.array([growth.node_time_ns(node, j) for j in range(units.count + 1)])
        last_ns = known_ns[:-1][::-1] + entry.message_ns + entry.bytes_ns(units.message_bytes)
        last_ns[-1] += links[0].latency_ns
        arrives_ns = np.maximum(last_ns, known_ns[-1])
        # Of more chunks in the last message all have yet to be spread, and it comes no sooner.
        arrives_ns = arrives_ns[: int(np.argmin(arrives_ns)) + 1]
        again = entry.message_ns + entry.bytes_ns(_least_bytes(units, len(arrives_ns), len(together)))
        inside = _Inside(network, units, len(arrives_ns), node, entry)
        found = []
        for e in inside.entered:
            ranks = [inside.locally_ns(e, rank) for rank in together if rank != e]
            found.append(_first_ns(arrives_ns, ranks, again))
        best = max(best, min(found))
    return min(best, NEVER)


def _least_bytes(units: Units, count: int, ranks: int) -> IntArray:
    """Least bytes of 1, 2 .. units that p brings again, as many as each of the ranks needs: [count ranks].

    A unit in part counts as one, for every rank: of so many units, all but one for each rank are there in full.
    """
    times = np.arange(1, count * ranks + 1, dtype=np.int64)
    return np.maximum(times - ranks, 0) * units.unit_bytes + 1 if units.partial else times * units.unit_bytes


class _Inside:
    """A node from b on, once for each e: e has some units, and so has one more rank, for what p brings again.

    All are in one network, where the growth engine goes only once through those that are equal.

    Attributes:
        entered: every e.
    """

    def __init__(self, network: Network, units: Units, count: int, node: int, entry: Machine) -> None:
        topology = network.topology
        ranks, many = topology.ranks_of_node[node], len(topology.resources)
        self._place, size = {rank: place for place, rank in enumerate(ranks)}, len(ranks) + 1
        self.entered = sorted({topology.links[k].target for k in entry.links if units.limit[k]})
        self._limit: list[int] = []
        links: list[Link] = []
        local = [
            k for k, link in enumerate(topology.links) if link.source in self._place and link.target in self._place
        ]
        for copy in range(len(self.entered)):
            at, outside = copy * size, copy * size + len(ranks)
            for k in local:
                link = topology.links[k]
                ends = at + self._place[link.source], at + self._place[link.target]
                held = tuple(copy * many + r for r in link.resources)
                links.append(Link(*ends, link.latency_ns, link.message_ns, link.gbps, held))
                self._limit.append(int(units.limit[k]))
            for rank in self.entered:
                held = (copy * many + entry.resource,)
                links.append(Link(outside, at + self._place[rank], 0, entry.message_ns, entry.gbps, held))
                self._limit.append(count)
        everyone = range(len(self.entered) * size)
        nodes = tuple(2 * (r // size) + (r % size == len(ranks)) for r in everyone)
        names = tuple(map(str, range(len(self.entered) * many)))
        chunk = Chunk(units.unit_bytes, (0,), tuple(everyone))
        self._network = Network(Instance(Topology("copies", nodes, tuple(links), names), (chunk,)))
        first = np.zeros(len(everyone), dtype=np.int64)
        for copy, rank in enumerate(self.entered):
            first[[copy * size + self._place[rank], (copy + 1) * size - 1]] = count
        few = replace(units, first=first, count=count, message_bytes=units.message_bytes[:count])
        self._growth = Growth(self._network, replace(few, limit=np.array(self._limit)))
        self._size, self._count = size, count

    def locally_ns(self, e: int, rank: int) -> IntArray:
        """Times after b when a rank may have 1, 2 .. of the n over its local links, [units]."""
        topology = self._network.topology
        into = topology.in_links[self.entered.index(e) * self._size + self._place[rank]]
        local = [k for k in into if self._limit[k] and not topology.crosses(topology.links[k])]
        times = [np.full(self._count, NEVER), *map(self._growth.arrivals_ns, self._network.cover(local))]
        return np.sort(np.concatenate(times))[: self._count]


def _first_ns(arrives_ns: IntArray, ranks: Sequence[IntArray], again_ns: IntArray) -> int:
    """The least over n, those first that arrive first.

    Args:
        arrives_ns: b, by n.
        ranks: per rank of W, its times.
        again_ns: those of p.
    """
    best = NEVER
    if not ranks:
        return int(arrives_ns.min())
    served_ns = np.arange(len(ranks) + 1) * int(again_ns[0])
    for n in np.argsort(arrives_ns, kind="stable") + 1:
        if arrives_ns[n - 1] >= best:
            break
        times = np.concatenate([*(of[:n] for of in ranks), again_ns])
        together_ns = np.partition(times, len(ranks) * n - 1)[len(ranks) * n - 1]
        # Latest first; if p serves all of them, none is left.
        locally_ns = np.array([*sorted((of[n - 1] for of in ranks), reverse=True), 0])
        spread_ns = max(together_ns, np.maximum(locally_ns, served_ns).min())
        best = min(best, int(arrives_ns[n - 1] + spread_ns))
    return best
