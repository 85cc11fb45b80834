"""Bounds by what the ranks of one node can know: those that share an entry to it, and all of them together.

**Ranks that share an entry** to their node: one of them has the worst of it.

Let G be k ranks that all need the same chunks D (copies, from outside G), with a resource p (a NIC, say) that is a
machine of each (growth.py): all that they get over its links takes its turn on p. s is the first time at which a
message with a chunk of D may start there. In addition to what the growth engine says of every rank of G,

(A) one of them is the last of G to get a chunk of D over p, or never does: before its first such message the k - 1
    others had one, of occupancy(1 chunk) at least. So its machine p starts at s + (k - 1) occupancy(1) only;
(B) by time T one of them has had p for (T - s - latency) / k at most, and over p no more chunks than fit into one
    message of that occupancy.

Of which rank that is nothing is known, and it may be another in (A) and (B): time is at least what either says of the
rank of G that it hurts least.

**All ranks of a node together**, their knowledge summed over ranks: for few and small messages.

Let X be the ranks of a node, all of which need the chunks D (copies), and R(t) the sum over X of how many of them each
has by t. The growth engine bounds the best-informed rank; but a rank can tell only one other at a time on one port, so
that ranks cannot all learn from the best-informed. Count messages where they leave:

- Within the node: each rank w sends over m machines at most (m of the rank that has most), on each one message after
  another, of g or more (one chunk), that arrive L or more later. Counted back from t, the i-th message to arrive of a
  machine left at t - L - i g or before, and carried at most what w had by then. Summed over ranks:
      within(t) <= m (R(t - L - g) + R(t - L - 2 g) + ...)
- Into the node: a machine of its entries carries messages one after another; one that starts at s takes occupancy(n)
  and carries n <= K(s) chunks, where K(s) is what its best-informed sender may have at s by the growth engine.

R(t) <= R(0) + within(t) + what all entries brought by t, which is linear in what they brought: with f(x) = 1 +
m (f(x - L - g) + f(x - L - 2 g) + ...), 0 before 0, a chunk that came at a is at most f(t - a) in R(t). So for any T

    R(T) <= R(0) f(T) + sum over entries of V(0), V(s) the most that messages from s on can be worth at T:
    V(s) = max over s' >= s and n <= K(s') of n f(T - s' - occupancy(n) - L') + V(s' + occupancy(n)),

and no schedule ends by T where that is less than |X| |D|. Time is cut into steps; durations are rounded down to whole
steps, which only helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.bounds.growth import Growth, Units
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network

_HAIR_NS = 1e-3


def sharing_ns(network: Network, growth: Growth, units: Units, wanting: BoolArray) -> int:
    """The best of both bounds over all entries that are shared."""
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


FloatArray = NDArray[np.float64]

_STEPS = 1000
# Of a node with more kinds of entries than this the bound is not worth its time.
_LOOKS = 8
_HAIR = 1e-6


def totals_ns(network: Network, growth: Growth, units: Units, wanting: BoolArray) -> int:
    """The bound of the first node of each look whose ranks all need all of D."""
    best = 0
    for node in network.typical_nodes:
        ranks = network.topology.ranks_of_node[node]
        if wanting[list(ranks)].all() and len(ranks) > 1:
            best = max(best, _of_node(network, growth, units, ranks, network.node_entries[node]))
    return best


def _of_node(network: Network, growth: Growth, units: Units, ranks: Sequence[int], machines: Sequence[Machine]) -> int:
    topology = network.topology
    inside = set(ranks)
    alone_ns = max(growth.time_ns(r, units.count) for r in ranks)
    leaving = [
        [m for m in network.exits[r] if any(units.limit[k] and topology.links[k].target in inside for k in m.links)]
        for r in ranks
    ]
    local = [
        topology.links[k]
        for found in leaving
        for m in found
        for k in m.links
        if units.limit[k] and topology.links[k].target in inside
    ]
    if not local or alone_ns >= NEVER:
        return 0
    # The answer is not looked for beyond twice what the growth engine says: the bound is at most that good.
    step = max(1, 2 * alone_ns // _STEPS)
    gap = min(k.occupancy_ns(int(units.message_bytes[0])) for k in local) // step
    entries = Counter(_entry(network, growth, units, m, step) for m in machines if any(units.limit[k] for k in m.links))
    if not gap or len(entries) > _LOOKS or any(not entry.occupancy[0] for entry in entries):
        return 0
    low, high = alone_ns // step, 2 * alone_ns // step
    first, need = sum(int(units.first[r]) for r in ranks), len(ranks) * units.count
    worth = _worth(max(map(len, leaving)), min(k.latency_ns for k in local) // step, gap, high, float(need))

    def refuted(last: int) -> bool:
        brought = sum(many * _brought(entry, worth, last) for entry, many in entries.items())
        return first * float(worth[last]) + brought < need - _HAIR * need

    if not refuted(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return high * step


def _worth(machines: int, latency: int, gap: int, last: int, enough: float) -> FloatArray:
    """Worth f of a chunk after 0, 1 .. ``last`` steps, [steps]; what is more than enough may be less than f."""
    # within[t] is the sum over i of f(t - i gap), and so within[t - gap] + f(t - gap).
    worth, within = np.ones(last + 1), np.zeros(last + 1)
    for t in range(last + 1):
        if t >= gap:
            within[t] = min(within[t - gap] + worth[t - gap], enough)
        if t >= latency:
            worth[t] += machines * within[t - latency]
    return worth


@dataclass(frozen=True)
class _Entry:
    """A machine into the node, in steps: when its senders may know 1, 2 .. chunks, and how long so many take."""

    known: tuple[int, ...]
    occupancy: tuple[int, ...]
    latency: int


def _entry(network: Network, growth: Growth, units: Units, machine: Machine, step: int) -> _Entry:
    links = [network.topology.links[k] for k in machine.links if units.limit[k]]
    most = min(units.count, max(int(units.limit[k]) for k in machine.links))
    known: IntArray = np.min([growth.tau[growth.colour_of[k.source], 1 : most + 1] for k in links], axis=0)
    costs = {(k.message_ns, k.gbps): k for k in links}.values()
    occupancy = [min(k.occupancy_ns(int(size)) for k in costs) // step for size in units.message_bytes[:most]]
    return _Entry(tuple((known // step).tolist()), tuple(occupancy), min(k.latency_ns for k in links) // step)


def _brought(entry: _Entry, worth: FloatArray, last: int) -> float:
    """Most that messages over one entry can be worth, V(0), T being in the last step."""
    occupancy, n = np.array(entry.occupancy), np.arange(1, len(entry.occupancy) + 1)
    held = np.searchsorted(entry.known, np.arange(last + 1), side="right")
    best = np.zeros(last + 2)
    for s in range(last, -1, -1):
        fit = min(int(held[s]), int(np.searchsorted(occupancy, last - s - entry.latency, side="right")))
        best[s] = best[s + 1]
        if fit:
            took = s + occupancy[:fit]
            best[s] = max(best[s], float((n[:fit] * worth[last - entry.latency - took] + best[took]).max()))
    return float(best[0])
