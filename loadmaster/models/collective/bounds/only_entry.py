"""The last chunks that enter a node over its only entry have yet to get to the other ranks.

Let D be chunks (copies) that start outside node U, where every link into U that they may use holds one resource p, and
let these links have one latency. Let M be the last message over p with a chunk that is new in U, n of them, to rank e;
it arrives at b. Until its start U had the others of D alone, so b >= tau[U, |D| - n] + occupancy(n), and b >= tau[U,
|D|], by the growth engine (of n = |D| it is latency + occupancy). Any other message M' that brings one of the n into U
takes its turn on p after M (before M it would be new), so j of them, whatever their targets, come so at b +
occupancy(j) or later. A rank x of U other than e has one at b + head(x) or later, head(x) the lesser of distance(e, x)
and occupancy(1).

Let W be the ranks of U other than e that need all of D, w of them. Over a local link from x, of a machine of its
own, rank v of W has j of the n at head(x) + latency + message_ns + bytes(j) or later. Together the ranks of W need w n:
v counts for n at most, and p for all that it brings again. So time >= b + the (w n)-th smallest of these times, the
first n of each v and those of p together, for some n and e.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units, entered_nodes
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network

_HAIR_NS = 1e-3


def only_entry_ns(network: Network, growth: Growth, units: Units, chunks: BoolArray, wanting: BoolArray) -> int:
    """The bound of one node of each look that D starts outside of.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        chunks: [chunks] the set D.
        wanting: [ranks] that need all of D.
    """
    best = 0
    distance_ns = network.distance_ns[np.unique(network.kind_of[chunks])].min(axis=0)
    for node, together in entered_nodes(network, units, wanting):
        machines = [m for m in network.node_entries[node] if any(units.limit[k] for k in m.links)]
        links = [network.topology.links[k] for m in machines for k in m.links if units.limit[k]]
        if len(machines) != 1 or len({k.latency_ns for k in links}) > 1:
            continue
        (entry,) = machines
        known_ns = np.array([growth.node_time_ns(node, j) for j in range(units.count + 1)])
        last_ns = known_ns[:-1][::-1] + _over_ns(entry, units.message_bytes)
        last_ns[-1] += links[0].latency_ns
        arrives_ns = np.maximum(last_ns, known_ns[-1])
        again = _over_ns(entry, _least_bytes(units, units.count * len(together)))
        found = []
        for e in sorted({k.target for k in links}):
            head_ns = np.minimum(distance_ns[e], again[0])
            ranks = [_locally_ns(network, units, rank, head_ns) for rank in together if rank != e]
            found.append(_first_ns(arrives_ns, ranks, again))
        best = max(best, min(found))
    return min(best, NEVER)


def _least_bytes(units: Units, count: int) -> IntArray:
    """[count] of 1, 2 .. units, each as often as it may be."""
    return np.arange(count, dtype=np.int64) * units.unit_bytes + (1 if units.partial else units.unit_bytes)


def _over_ns(machine: Machine, message_bytes: IntArray) -> IntArray:
    """How long a machine takes for so many bytes."""
    return machine.message_ns + np.ceil(message_bytes / machine.gbps - _HAIR_NS).astype(np.int64)


def _locally_ns(network: Network, units: Units, rank: int, head_ns: IntArray) -> IntArray:
    """[units] after b, when a rank may have 1, 2 .. of the n over its local links."""
    topology = network.topology
    local = [k for k in topology.in_links[rank] if units.limit[k] and not topology.crosses(topology.links[k])]
    times = [np.full(units.count, NEVER)]
    for machine in network.cover(local):
        links = [topology.links[k] for k in machine.links]
        beside_ns = min(int(head_ns[k.source]) for k in links) + min(k.latency_ns for k in links)
        times.append(beside_ns + _over_ns(machine, units.message_bytes))
    return np.sort(np.concatenate(times))[: units.count]


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
    for n in np.argsort(arrives_ns, kind="stable") + 1:
        if arrives_ns[n - 1] >= best:
            break
        times = np.concatenate([*(of[:n] for of in ranks), again_ns])
        best = min(best, int(arrives_ns[n - 1] + np.partition(times, len(ranks) * n - 1)[len(ranks) * n - 1]))
    return best
