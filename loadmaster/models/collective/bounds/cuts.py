"""Bounds by distance, and by the capacity of a cut: ports of a rank, NICs of a node.

**Dilation.** What a target must have of a chunk comes from a source (from every source, where the chunk is a sum) over
links one after another; a message that carries more than the chunk is no faster. So time >= distance.

**Cut.** Let S be a set of ranks, K the links into it, and M machines (resources) of which every link of K holds one.
Of a chunk that S needs from outside choose a target t in S and a source u outside. The way from u to t enters S for the
last time by a message over a link k of K, which

- starts no earlier than head = min over k of distance(u, source of k);
- holds a machine for the chunk's bytes / gbps at least, next to all other chunks of this kind, and for message_ns at
  least once on each machine that works at all;
- ends no later than time - tail, tail = min over k of latency(k) + distance(target of k, t).

Of the chunks with head >= a and tail >= b, all messages that count are within [a, time - b]. Let X(n) be the time that
the machines need for n chunks side by side (n-th of the completion times of chunks of the least size; or their bytes at
the bandwidth of all machines together). Then time >= a + X + b: the preemptive Jackson bound of 1 | r, q, pmtn | Cmax,
whose worst set is always of this form, for machines side by side.

For a chunk copied from several sources, u is the nearest; for a sum, the farthest: it must come from all. The farthest
t is taken. Chunks that stay on one side of the cut do not count.

Where chunks are divisible, the same is said of every byte of them: distances are those of one byte, and X is by bytes
at the bandwidth of all machines together.

**Shared wires** are the only way into several ranks, or out of them. Let all links into each rank of a set R hold one
resource. Rank r of R must be sent S_r bytes: each copied chunk that it wants and does not have, and of each sum that it
wants, unless all of it is its own, a part or the whole. A message has one target, so those for different ranks are
different ones. All of them hold the resource, one after another:

    sum over r in R of (message_ns + S_r / gbps), with the least message_ns and the largest gbps of the links,

and the last one, which its target needs, arrives the least latency later. Out of ranks the same: r must send every
chunk that it alone has and others want, and of each sum that others want, of which it has a part, that part or the
whole. For one rank this is the bound of its port.

Example: two ranks on one wire, 100 ns a message, 1 byte/ns, and 1,000 bytes each for the other: 2,200 ns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network

# Sums of float quotients may end a hair above a whole number of nanoseconds.
_HAIR_NS = 1e-3


def dilation_ns(network: Network) -> int:
    """The longest way that any chunk must go, alone."""
    worst = 0
    for chunk, kind in zip(network.instance.chunks, network.kind_of, strict=True):
        ways = network.distance_ns[kind][list(chunk.sources)][:, list(chunk.targets)]
        if ways.size:
            worst = max(worst, int(ways.max() if chunk.reduces else ways.min(axis=0).max()))
    return worst


def cut_bounds(network: Network) -> Iterator[tuple[int, str]]:
    """Time bounds of the cuts around one rank and one node of each colour, inwards and outwards."""
    for rank in network.typical_ranks:
        alone = np.zeros(network.rank_count, dtype=bool)
        alone[rank] = True
        yield cut_ns(network, alone), "ingress ports of a rank"
        yield cut_ns(network, ~alone), "egress ports of a rank"
    if network.topology.node_count > 1:
        for node in network.typical_nodes:
            inside = network.node_of == node
            yield cut_ns(network, inside), "links into a node"
            yield cut_ns(network, ~inside), "links out of a node"


def cut_ns(network: Network, inside: BoolArray) -> int:
    """The bound of one cut. ``inside``: [ranks] the set S."""
    links = [
        k
        for k in network.used_links
        if inside[network.topology.links[k].target] and not inside[network.topology.links[k].source]
    ]
    crossing, head, tail = _heads_and_tails(network, inside, links)
    if not crossing.any():
        return 0
    if not links:
        return NEVER
    sizes = network.size_bytes[crossing]
    machines = network.cover(links)
    count = 0 if network.divisible else int(crossing.sum())
    completion = completions(machines, np.arange(1, count + 1) * int(sizes.min()))
    return _worst_set(head[crossing], tail[crossing], sizes, completion, machines)


def _heads_and_tails(network: Network, inside: BoolArray, links: list[int]) -> tuple[BoolArray, IntArray, IntArray]:
    """Find the chunks that S needs from outside, and the head and the tail of their crossing: each [chunks]."""
    outer, inner = network.sources & ~inside, network.targets & inside
    held = (network.sources & inside).any(axis=1)
    crossing = inner.any(axis=1) & np.where(network.reduces, outer.any(axis=1), ~held)
    head = np.zeros(len(crossing), dtype=np.int64)
    tail = np.zeros(len(crossing), dtype=np.int64)
    for kind in range(len(network.first_of_kind)):
        open_links = [network.topology.links[k] for k in links if network.usable[kind, k]]
        chunks = np.flatnonzero(crossing & (network.kind_of == kind))
        if not open_links or not chunks.size:
            continue
        distance = network.distance_ns[kind]
        to_cut = distance[:, sorted({k.source for k in open_links})].min(axis=1)
        latency: dict[int, int] = {}
        for k in open_links:
            latency[k.target] = min(latency.get(k.target, NEVER), k.latency_ns)
        entered = sorted(latency)
        from_cut = (distance[entered] + np.array([latency[r] for r in entered])[:, None]).min(axis=0)
        near = np.where(outer[chunks], to_cut, NEVER).min(axis=1)
        far = np.where(outer[chunks], to_cut, 0).max(axis=1)
        head[chunks] = np.where(network.reduces[chunks], far, near)
        tail[chunks] = np.where(inner[chunks], from_cut, 0).max(axis=1)
    return crossing, head, tail


def completions(machines: tuple[Machine, ...], message_bytes: IntArray) -> IntArray:
    """Times when machines that start together complete 0, 1 .. units, [units + 1]; ``message_bytes``: [units]."""
    each = [m.message_ns + m.bytes_ns(message_bytes) for m in machines]
    together = np.sort(np.concatenate(each))[: len(message_bytes)]
    return np.concatenate([np.zeros(1, dtype=np.int64), together])


def _worst_set(
    head: IntArray, tail: IntArray, sizes: IntArray, completion: IntArray, machines: tuple[Machine, ...]
) -> int:
    """The largest a + X + b over thresholds a of heads and b of tails."""
    heads, row = np.unique(head, return_inverse=True)
    tails, column = np.unique(tail, return_inverse=True)
    shape = (len(heads), len(tails))
    cells = row.ravel() * len(tails) + column.ravel()
    count = _from_here_on(np.bincount(cells, minlength=len(heads) * len(tails)).reshape(shape))
    total = _from_here_on(np.bincount(cells, weights=sizes, minlength=len(heads) * len(tails)).reshape(shape))
    speed = math.fsum(m.gbps for m in machines)
    spread = np.ceil(min(m.message_ns for m in machines) + total / speed - _HAIR_NS).astype(np.int64)
    # Of divisible chunks no number of units is known to be complete.
    length = np.maximum(completion[np.minimum(count, len(completion) - 1).astype(np.int64)], spread)
    found = np.where(count > 0, heads[:, None] + length + tails[None, :], 0)
    return min(NEVER, int(found.max()))


def _from_here_on(cells: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> np.ndarray[tuple[int, ...], np.dtype]:
    """Sums over all cells at or after each, in both directions."""
    return cells[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]


def shared_wires_ns(network: Network) -> int:
    """The best of these bounds, over all resources, into ranks and out of them."""
    alone = network.sources & (network.sources.sum(axis=1, keepdims=True) == 1)
    wanted_elsewhere = network.targets.sum(axis=1, keepdims=True) > network.targets
    sums = network.reduces[:, None]
    receives = network.targets & np.where(sums, ~alone, ~network.sources)
    sends = wanted_elsewhere & np.where(sums, network.sources, alone)
    topology = network.topology
    used, found = set(network.used_links), 0
    for moved, links_of in ((receives, topology.in_links), (sends, topology.out_links)):
        bytes_of = network.size_bytes @ moved
        held: dict[int, list[int]] = {}
        for rank in np.flatnonzero(bytes_of).tolist():
            resources = [topology.links[k].resources for k in links_of[rank] if k in used]
            for resource in set(resources[0]).intersection(*resources[1:]) if resources else ():
                held.setdefault(resource, []).append(rank)
        for ranks in held.values():
            links = [topology.links[k] for rank in ranks for k in links_of[rank] if k in used]
            busy_ns: float = len(ranks) * min(k.message_ns for k in links)
            busy_ns += int(bytes_of[ranks].sum()) / max(k.gbps for k in links)
            found = max(found, math.ceil(busy_ns - _HAIR_NS) + min(k.latency_ns for k in links))
    return found
