"""Bounds by the entries of a node: their release of chunks into it, and the last chunk over an only one.

**Release.** Chunks are released into a node by its entries, and go on through the ports of its ranks.

Let D be chunks (copies) that start outside node U, and G ranks of U that all need D. The links into U from other nodes
are covered by machines p (NICs, say); local links are those within U. Fix times b <= T, and let

- A_p be the chunks that arrive in U over p before b, B_pv those that arrive over p at v itself, from b up to T.

A chunk of D in no A_p is nowhere in U before b. If it is in no B_pv either, v has it first, by T, from a local link k
whose sender has had it from an entry e of U other than v: that message starts at b + distance(e, sender of k) or later.
The local ingress of v brings at most C_v(T - b) chunks so late, by bytes and one message_ns for each of its machines.
So sum over v in G of (|D| - sum over p of |A_p| + |B_pv \\ A_p|) <= sum over v in G of C_v(T - b), where

- |A_p| <= a_p(b), the different chunks that the growth engine lets p bring before b;
- |A_p| + sum over v of |B_pv \\ A_p| <= w_p(T), all that p brings to U up to T, a chunk once for each of its targets:
  by bytes, or, if G is one rank, as then all are different, a_p(T + 1). Of p with no link to G the sum is empty.

So |G| |D| <= sum over p of (|G| a_p(b), or (|G| - 1) a_p(b) + w_p(T) where p has a link to G) + sum of C_v(T - b), or
no schedule ends by T. Bisection looks for the last T that some b refutes so; b need only be a time at which some a_p
grows. Nothing is said of messages but one per machine, and merged chunks arrive no earlier than one by one. k ranks
that share a NIC get (k - 1) a_p(b) + w_p(T) together: in its last round at least one of them gets nothing.

**Only entry.** The last chunks that enter a node over its only entry have yet to get to the other ranks.

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

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units, entered_nodes
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network, first_allowed_ns
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.topology import Link, Topology

# Quotients of bytes by GB/s are kept to six decimals per message; so many of them stay below this.
_HAIR_NS = 1e-3


@dataclass(frozen=True)
class _Entry:
    """A machine p of the node: when it may have brought 1, 2 .. different chunks, and what it brings by bytes."""

    arrivals_ns: IntArray
    first_ns: int
    gbps: float
    ranks: frozenset[int]

    def by_bytes(self, until_ns: int, units: Units) -> int:
        """Units that the machine brings up to a time, w_p; one that is there in part counts as a unit."""
        brought = max(0.0, (until_ns - self.first_ns + _HAIR_NS) * self.gbps / units.unit_bytes)
        return math.ceil(brought) if units.partial else int(brought)


def releasing_ns(network: Network, growth: Growth, units: Units, chunks: BoolArray, wanting: BoolArray) -> int:
    """The bound of one node of each look that D starts outside of: all its ranks together, and some alone."""
    best = 0
    for node, together in entered_nodes(network, units, wanting):
        alone_ns = max(growth.time_ns(r, units.count) for r in together)
        if alone_ns >= NEVER:
            continue
        entries = list(_entries(network, growth, units, network.node_entries[node]))
        typical = {int(network.alike[r]): r for r in reversed(together)}.values()
        for group in ([together] if len(together) > 1 else []) + [[r] for r in typical]:
            ports = _ports(network, units, chunks, entries, group)
            best = max(best, _first_time(entries, ports, group, units, max(best, alone_ns)))
    return best


def _entries(network: Network, growth: Growth, units: Units, machines: Sequence[Machine]) -> Iterator[_Entry]:
    for machine in machines:
        links = [network.topology.links[k] for k in machine.links if units.limit[k]]
        if links:
            sent_ns = min(growth.time_ns(k.source, 1) for k in links)
            beside_ns = min(k.message_ns for k in links) + min(k.latency_ns for k in links)
            yield _Entry(
                growth.arrivals_ns(machine),
                min(NEVER, sent_ns + beside_ns),
                max(k.gbps for k in links),
                frozenset(k.target for k in links),
            )


def _ports(
    network: Network, units: Units, chunks: BoolArray, entries: Sequence[_Entry], group: Sequence[int]
) -> Counter[tuple[int, ...]]:
    """The machines of the local links into some ranks: times after b at which they may have brought 1, 2 .. chunks."""
    topology = network.topology
    distance_ns = network.distance_ns[np.unique(network.kind_of[chunks])].min(axis=0)
    entered = {rank for entry in entries for rank in entry.ranks}
    found: Counter[tuple[int, ...]] = Counter()
    for rank in group:
        others = sorted(entered - {rank})
        local = [
            k for k in topology.in_links[rank] if units.limit[k] and not topology.crosses(topology.links[k]) and others
        ]
        for machine in network.cover(local):
            links = [topology.links[k] for k in machine.links]
            way_ns = int(distance_ns[np.ix_(others, [k.source for k in links])].min())
            beside_ns = way_ns + machine.message_ns + min(k.latency_ns for k in links)
            times = beside_ns + machine.bytes_ns(units.message_bytes)
            found[tuple(np.minimum(times, NEVER).tolist())] += 1
    return found


def _first_time(
    entries: Sequence[_Entry], ports: Counter[tuple[int, ...]], group: Sequence[int], units: Units, least_ns: int
) -> int:
    """The first time that is not refuted, from the one given on."""
    count, ranks = units.count, len(group)
    after = np.unique(np.concatenate([entry.arrivals_ns for entry in entries])) if entries else np.zeros(0)
    after = after[after < NEVER]
    touching = [not entry.ranks.isdisjoint(group) for entry in entries]
    before = np.zeros(len(after), dtype=np.int64)
    for entry, touches in zip(entries, touching, strict=True):
        before += (ranks - touches) * np.searchsorted(entry.arrivals_ns, after, side="left")
    curves = [(np.array(times), many) for times, many in ports.items()]

    def refuted(until_ns: int) -> bool:
        brought = 0
        for entry, touches in zip(entries, touching, strict=True):
            if touches:
                most = min(entry.by_bytes(until_ns, units), ranks * count)
                different = int(np.searchsorted(entry.arrivals_ns, until_ns, side="right"))
                brought += min(most, different) if ranks == 1 else most
        passed = sum(many * np.searchsorted(times, until_ns - after, side="right") for times, many in curves)
        return bool((ranks * count > before + brought + passed)[after <= until_ns].any())

    if not after.size or not refuted(least_ns):
        return least_ns
    return first_allowed_ns(refuted, least_ns)


# Nodes of more ranks would take longer than the bound is worth.
_MOST_RANKS = 32


def only_entry_ns(network: Network, growth: Growth, units: Units, chunks: BoolArray, wanting: BoolArray) -> int:
    """The bound of one node of each look that D starts outside of."""
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
    """Least bytes of 1, 2 .. units that p brings again, as many as each of the ranks needs: [count ranks]. A unit in
    part counts as one, for every rank: of so many units, all but one for each rank are there in full."""
    times = np.arange(1, count * ranks + 1, dtype=np.int64)
    return np.maximum(times - ranks, 0) * units.unit_bytes + 1 if units.partial else times * units.unit_bytes


class _Inside:
    """A node from b on, once for each e: e has some units, and so has one more rank, for what p brings again. All are
    in one network, where the growth engine goes only once through those that are equal. ``entered``: every e."""

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
    """The least over n, those first that arrive first: of b (by n), the times of each rank of W, and those of p."""
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
