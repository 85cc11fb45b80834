"""Chunks are released into a node by its entries, and go on through the ports of its ranks.

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
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units, entered_nodes
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network, first_allowed_ns

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
    """The bound of one node of each look that D starts outside of: all its ranks together, and some alone.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        chunks: [chunks] the set D.
        wanting: [ranks] that need all of D.
    """
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
