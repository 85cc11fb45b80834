"""What all ranks of a node know together: a bound by the sum over ranks, for few and small messages.

Let X be the ranks of a node, all of which need the chunks D (copies), and R(t) the sum over X of how many of them each
has by t. The growth engine bounds the best-informed rank; but a rank can tell only one other at a time on one port, so
that ranks cannot all learn from the best-informed. Count messages where they leave:

- Within the node: each rank w sends over m machines at most (m of the rank that has most), on each one message after
  another, of g or more (one chunk), that arrive L or more later. Counted back from t, the i-th message to arrive of a
  machine left at t - L - i g or before, and carried at most what w had by then. Summed over ranks:
      within(t) <= m (R(t - L - g) + R(t - L - 2 g) + ...)
- Into the node: on each machine of its entries the i-th message counted back left at t - L' - i g' or before, and
  carried at most what the best-informed rank outside had by then, by the growth engine; and all bytes took their time:
      into(t) <= sum over entries of min(K(t - L' - g') + K(t - L' - 2 g') + ..., (t - L' - s) gbps / bytes of a chunk)
  where K(s) = 0 before s.

R(t) <= R(0) + within(t) + into(t), and at the end R >= |X| |D|. Time is cut into steps; durations are rounded down to
whole steps, which only helps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network

_STEPS = 2000
_HAIR = 1e-6


def totals_ns(network: Network, growth: Growth, units: Units, wanting: BoolArray) -> int:
    """The bound of the first node of each look whose ranks all need all of D.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        wanting: [ranks] that need all of D.
    """
    best = 0
    for node in network.typical_nodes:
        ranks = network.topology.ranks_of_node[node]
        if wanting[list(ranks)].all() and len(ranks) > 1:
            best = max(best, _of_node(network, growth, units, ranks, network.node_entries[node]))
    return best


def _of_node(network: Network, growth: Growth, units: Units, ranks: Sequence[int], entries: Sequence[Machine]) -> int:
    topology = network.topology
    inside = set(ranks)
    alone_ns = max(growth.time_ns(r, units.count) for r in ranks)
    leaving = [
        [m for m in network.exits[r] if any(units.limit[k] and topology.links[k].target in inside for k in m.links)]
        for r in ranks
    ]
    local = [
        topology.links[k]
        for machines in leaving
        for m in machines
        for k in m.links
        if units.limit[k] and topology.links[k].target in inside
    ]
    if not local or alone_ns >= NEVER:
        return 0
    size_bytes = int(units.sizes_bytes[0])
    gap_ns, latency_ns = min(k.occupancy_ns(size_bytes) for k in local), min(k.latency_ns for k in local)
    # The answer is not looked for beyond twice what the growth engine says: the bound is at most that good.
    step = max(1, 2 * alone_ns // _STEPS)
    count = 2 * alone_ns // step
    gap, latency = gap_ns // step, latency_ns // step
    if not gap:
        return 0
    into = np.zeros(count + 1)
    for machine in entries:
        into += _into(network, growth, units, machine, step, count)
    machines = max(map(len, leaving))
    need = len(ranks) * units.count
    first = float(sum(int(units.first[r]) for r in ranks))
    # within[t] is the sum over i of R(t - i gap), and so within[t - gap] + R(t - gap).
    total, within = np.zeros(count + 1), np.zeros(count + 1)
    for t in range(count + 1):
        if t >= gap:
            within[t] = within[t - gap] + total[t - gap]
        heard = within[t - latency] if t >= latency else 0.0
        total[t] = first + machines * heard + into[t]
        if total[t] >= need - _HAIR:
            return t * step
    return count * step


def _into(network: Network, growth: Growth, units: Units, machine: Machine, step: int, count: int) -> np.ndarray:
    """[steps] how many chunks one entry may have brought by the end of each step."""
    links = [k for k in machine.links if units.limit[k]]
    if not links:
        return np.zeros(count + 1)
    costs = [network.topology.links[k] for k in links]
    known: IntArray = np.min([growth.tau[growth.colour_of[k.source]] for k in costs], axis=0)
    most = min(units.count, max(int(units.limit[k]) for k in links))
    size_bytes = int(units.sizes_bytes[0])
    gap = min(k.occupancy_ns(size_bytes) for k in costs) // step
    latency = min(k.latency_ns for k in costs) // step
    held = np.minimum(np.searchsorted(known[1:] // step, np.arange(count + 1), side="right"), most).astype(np.float64)
    told = np.full(count + 1, np.inf) if not gap else np.zeros(count + 1)
    for t in range(gap, count + 1) if gap else ():
        told[t] = told[t - gap] + held[t - gap]
    # Bytes that may have come by the end of a step, from when there was a chunk to send.
    since = np.maximum(0.0, (np.arange(count + 1) + 1) * step - float(known[1]))
    sent = np.minimum(told, since * max(k.gbps for k in costs) / size_bytes)
    return np.concatenate([np.zeros(min(latency, count + 1)), sent])[: count + 1]
