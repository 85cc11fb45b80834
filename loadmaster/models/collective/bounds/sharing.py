"""Ranks that share an entry to their node: one of them has the worst of it.

Let G be k ranks that all need the same chunks D (copies, from outside G), with a resource p (a NIC, say) that is a
machine of each (growth.py): all that they get over its links takes its turn on p. s is the first time at which a
message with a chunk of D may start there. In addition to what the growth engine says of every rank of G,

(A) one of them is the last of G to get a chunk of D over p, or never does: before its first such message the k - 1
    others had one, of occupancy(1 chunk) at least. So its machine p starts at s + (k - 1) occupancy(1) only;
(B) by time T one of them has had p for (T - s - latency) / k at most, and over p no more chunks than fit into one
    message of that occupancy.

Of which rank that is nothing is known, and it may be another in (A) and (B): time is at least what either says of the
rank of G that it hurts least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, Machine, Network

_HAIR_NS = 1e-3


def sharing_ns(network: Network, growth: Growth, units: Units, wanting: BoolArray) -> int:
    """The best of both bounds over all entries that are shared.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        wanting: [ranks] that need all of D.
    """
    return max(
        (max(_of_group(network, growth, units, *group)) for group in _groups(network, units, wanting)), default=0
    )


def _groups(network: Network, units: Units, wanting: BoolArray) -> Iterator[tuple[Sequence[int], Sequence[Machine]]]:
    """The ranks around each shared machine, with the machine of each."""
    around: dict[int, list[tuple[int, Machine]]] = {}
    for rank in np.flatnonzero(wanting & (units.first == 0)).tolist():
        for machine in network.entries[rank]:
            if any(units.limit[k] for k in machine.links):
                around.setdefault(machine.resource, []).append((rank, machine))
    seen: set[tuple[int, ...]] = set()
    for members in around.values():
        look = tuple(sorted(int(network.alike[rank]) for rank, _ in members))
        if len(members) > 1 and look not in seen:
            seen.add(look)
            yield [rank for rank, _ in members], [machine for _, machine in members]


def _of_group(
    network: Network, growth: Growth, units: Units, ranks: Sequence[int], machines: Sequence[Machine]
) -> tuple[int, int]:
    """Bounds (A) and (B), each of the rank that it hurts least."""
    links = {k for machine in machines for k in machine.links if units.limit[k]}
    costs = [network.topology.links[k] for k in links]
    senders = [(growth.tau[growth.colour_of[network.topology.links[k].source], 1]) for k in links]
    gbps, message_ns = max(k.gbps for k in costs), min(k.message_ns for k in costs)
    message = message_ns + np.ceil(units.message_bytes / gbps - _HAIR_NS).astype(np.int64)
    first_ns, latency_ns = int(min(senders)), min(k.latency_ns for k in costs)
    last: list[int] = []
    least: list[int] = []
    for rank, machine in zip(ranks, machines, strict=True):
        others = [growth.arrivals_ns(m) for m in network.entries[rank] if m is not machine]
        beside = np.sort(np.concatenate(others)) if others else np.zeros(0, dtype=np.int64)
        late = growth.arrivals_ns(machine, first_ns + (len(ranks) - 1) * int(message[0]))
        last.append(int(np.sort(np.concatenate([beside, late]))[units.count - 1]))
        # What fits into 1/k of the time, as times by which 1, 2 .. chunks may have come.
        share = np.minimum(first_ns + latency_ns + len(ranks) * message, NEVER)
        share = np.maximum(share, growth.arrivals_ns(machine))
        least.append(int(np.sort(np.concatenate([beside, share]))[units.count - 1]))
    return min(last), min(least)
