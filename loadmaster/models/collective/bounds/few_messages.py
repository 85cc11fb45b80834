"""Few messages over an entry of a node are large ones, gathered before and handed out after.

Let D be copied chunks of one source, outside node U, and one target, in U: an AllToAll. Of each choose a way to its
target, and count it at the machine p of the link over which this enters U for the last time. Let n chunks be counted at
p, in M messages, each chunk in the one that its way goes by; p carries these messages one after another, M message_ns
and the bytes of n chunks at least (occupancy_M), and ends them a latency before they arrive. Let own(w) be the chunks
of D that start at w, final(e) those that end at e; h the least time to any sender over p from elsewhere, h' from any
receiver over p to elsewhere.

(1) M = 1, from w to e: n - own(w) chunks came to w before, by its entries; n - final(e) leave e after, by its exits.
(2) M = 2: if the first starts before h, its chunks start at its sender w; if the last arrives later than time - h', its
    chunks end at its receiver e. With both n <= |own(w) + final(e) - chunks from w to e|, so for larger n
    time >= occupancy_2 + latency + min(h, h').
(3) M >= 3: time >= occupancy_3 + latency.

So n chunks at p need B_p(n), the least of the three, which grows with n. All of D are counted somewhere: time is at
least the |D|-th smallest of the values B_p(1), B_p(2) .. of all p. Of divisible chunks the same is said of bytes, in
units of which the last may be there in part (growth.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.collective.bounds.cuts import completions
from loadmaster.models.collective.bounds.network import NEVER, IntArray, Machine, Network

_HAIR_NS = 1e-3


def few_messages_ns(network: Network, node: int) -> int:
    """The bound of the chunks of one source and one target that must enter a node."""
    inside = network.node_of == node
    chunks = ~network.reduces & (network.sources.sum(axis=1) == 1) & (network.targets.sum(axis=1) == 1)
    chunks &= ~network.sources[:, inside].any(axis=1) & network.targets[:, inside].any(axis=1)
    if not chunks.any() or not network.node_entries[node]:
        return NEVER if chunks.any() else 0
    unit_bytes, message_bytes = network.units_of(chunks)
    between = np.zeros((network.rank_count, network.rank_count), dtype=np.int64)
    ends = network.sources[chunks].argmax(axis=1), network.targets[chunks].argmax(axis=1)
    np.add.at(between, ends, network.size_bytes[chunks] if network.divisible else 1)
    one = unit_bytes if network.divisible else 1
    each = [_needed(network, m, between, one, message_bytes) for m in network.node_entries[node]]
    return min(NEVER, int(np.sort(np.concatenate(each))[len(message_bytes) - 1]))


def _needed(network: Network, machine: Machine, between: IntArray, one: int, message_bytes: IntArray) -> IntArray:
    """B_p(1), B_p(2) .. of one machine.

    Args:
        between: [ranks, ranks] how much of D is from each to each; ``one`` is a unit of it.
        message_bytes: [units] what a message of 1, 2 .. units carries at least.
    """
    topology = network.topology
    links = [topology.links[k] for k in machine.links]
    senders, receivers = sorted({k.source for k in links}), sorted({k.target for k in links})
    own, final = -(-between.sum(axis=1)[senders] // one), -(-between.sum(axis=0)[receivers] // one)
    n = np.arange(1, len(message_bytes) + 1)
    latency_ns = min(k.latency_ns for k in links)
    taken_ns = np.ceil(message_bytes / machine.gbps - _HAIR_NS).astype(np.int64) + latency_ns
    before = [_moved(network, network.entries[w], topology.in_links[w], message_bytes) for w in senders]
    after = [_moved(network, network.exits[e], topology.out_links[e], message_bytes) for e in receivers]
    gathered = np.min([times[np.maximum(n - held, 0)] for times, held in zip(before, own, strict=True)], axis=0)
    handed = np.min([times[np.maximum(n - held, 0)] for times, held in zip(after, final, strict=True)], axis=0)
    ends = between.sum(axis=1)[senders][:, None] + between.sum(axis=0)[receivers]
    most = -(-int((ends - between[np.ix_(senders, receivers)]).max()) // one)
    beside_ns = min(min(int(times[1]) for times in before), min(int(times[1]) for times in after))
    single = gathered + machine.message_ns + taken_ns + handed
    two = 2 * machine.message_ns + taken_ns + np.where(n > most, beside_ns, 0)
    least: IntArray = np.minimum(np.minimum(single, two), 3 * machine.message_ns + taken_ns)
    return least


def _moved(network: Network, machines: tuple[Machine, ...], links: Sequence[int], message_bytes: IntArray) -> IntArray:
    """[units + 1] the least time in which a rank gets, or gets rid of, so many units."""
    if not machines:
        return np.concatenate([np.zeros(1, dtype=np.int64), np.full(len(message_bytes), NEVER, dtype=np.int64)])
    found = completions(machines, message_bytes)
    found[1:] += min(network.topology.links[k].latency_ns for k in links)
    return found
