"""Bounds by lengths: what a chunk costs all resources together, whatever way it takes.

Give every resource a length w >= 0, and a link the sum of its resources' over its gbps. A chunk of b bytes that gets to
a target at distance d takes w-weighted time b d on resources, of which there is T sum w at most in T ns; so

    T >= sum of b d / sum of w    (for a sum: d from its farthest source)

for any lengths. By duality of linear programs, the best lengths say what the best shares of ways do (the maximum
concurrent flow). Lengths of 1 for all resources do where all are equal: AllToAll on a ring or a square torus; those of
1 for links between nodes alone, on clusters.

**Looked for** are better ones where every chunk has one source and one target. A resource that carries more than others
when all chunks take their shortest ways, in equal shares where there are several, becomes longer:

    w <- w exp(step load / greatest load)

(multiplicative weights: [Garg07]), in steps that become shorter. Each round gives a bound; on a torus with sides of 8
and 16, say, links along the shorter side lose their length, which leaves the cut across the longer one.

**In time.** Instead of T, a resource has what its messages leave it. Let every chunk have one way; messages count that
carry a chunk along its way. They have left the resource by X = T less the least latency of its links; m is the least
message_ns of these. Either all chunks on the resource go over it from their source straight to their target: they take
X - m at most, and no more than D, all that there is from the source of a link to its target. Or some chunk comes from
elsewhere, or goes on. Alone, its message starts at a, the least transfer into the source of a link, or has left by
X - b, the least transfer out of a target; otherwise there are two, so that X - m - min(m, a, b) is left. A link which
relays sends twice. So T >= the first time at which what is left, weighted by lengths, is the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.bounds.network import NEVER, Network, first_allowed_ns

FloatArray = NDArray[np.float64]

# Distances are sums of floats: the bound is rounded down by this share.
_ROUNDING = 1e-9
_HAIR_NS = 1e-3
# Rounds of looking for lengths; of more work than this, in entries of arrays, fewer. The step of round n is the first
# one's by 1 + n times its shortening: of 1,500 random networks the worst bound was 0.935 of the best (0.854 in even
# steps of 0.3), the mean 0.997 (0.983).
_ROUNDS, _FIRST_STEP, _SHORTENING = 60, 5.0, 0.3
_MOST_WORK = 1 << 27


def lengths_ns(network: Network, over: Callable[[], bool] = lambda: False) -> int:
    """The best bound found by bandwidth alone; ``over`` is asked each round, and the best so far is a bound, too."""
    best = max((work / math.fsum(lengths) for lengths, work in _weighted(network, over)), default=0.0)
    return NEVER if best >= NEVER else max(0, math.ceil(best * (1.0 - _ROUNDING) - _HAIR_NS))


def timed_lengths_ns(network: Network, over: Callable[[], bool] = lambda: False) -> int:
    """The bound in time, where every chunk has one source and one target. ``over`` as above."""
    left, best = _Left(network), 0
    for lengths, work in _weighted(network, over):
        if work == np.inf:
            return NEVER
        refuted = partial(left.lacks, work * (1.0 - _ROUNDING) - _HAIR_NS, lengths)
        if refuted(best):
            best = first_allowed_ns(refuted, best)
    return best


class _Left:
    """Time that each resource has for bytes, next to its messages: **In time** above."""

    def __init__(self, network: Network) -> None:
        topology = network.topology
        links = [topology.links[k] for k in network.used_links]
        least_bytes = min((network.least_bytes(int(size)) for size in network.size_bytes), default=0)
        count, between = len(topology.resources), _pairs(network)
        into, out = np.full(network.rank_count, NEVER), np.full(network.rank_count, NEVER)
        for k in links:
            into[k.target] = min(into[k.target], k.transfer_ns(least_bytes))
            out[k.source] = min(out[k.source], k.transfer_ns(least_bytes))
        self._latency, self._message, self._beside = (np.full(count, NEVER) for _ in range(3))
        self._straight = np.zeros(count)
        for k in links:
            for r in k.resources:
                self._latency[r] = min(self._latency[r], k.latency_ns)
                self._message[r] = min(self._message[r], k.message_ns)
                self._beside[r] = min(self._beside[r], into[k.source], out[k.target])
                self._straight[r] += between[k.source, k.target] / k.gbps

    def lacks(self, needed: float, lengths: FloatArray, ns: int) -> bool:
        """Return whether all resources together have less than ``needed`` up to a time."""
        alone = ns - self._latency - self._message
        relays = alone - np.minimum(self._message, self._beside)
        return float(lengths @ np.maximum(0.0, np.maximum(np.minimum(alone, self._straight), relays))) < needed


def moves(network: Network) -> bool:
    """Return whether every chunk has one source and one target."""
    return all(len(chunk.sources) == len(chunk.targets) == 1 for chunk in network.instance.chunks)


def _weighted(network: Network, over: Callable[[], bool]) -> Iterator[tuple[FloatArray, float]]:
    """Lengths of resources, and the weighted time that all chunks take on them at least."""
    topology = network.topology
    links = [topology.links[k] for k in network.used_links]
    if not links:
        return
    ways = _Ways(network)
    # [ranks, ranks] bytes from one to another, where all chunks have one source and one target each.
    moving, reached = _pairs(network) if moves(network) else None, True
    for crossing in (False, True):
        lengths = np.zeros(len(topology.resources))
        lengths[[r for k in links if not crossing or topology.crosses(k) for r in k.resources]] = 1.0
        if lengths.any():
            distances = ways.distances(lengths)
            work = math.fsum(_work(network, distances)) if moving is None else _work_of_pairs(moving, distances)
            reached = reached and work < np.inf
            yield lengths, work
    if moving is not None and moving.any() and reached:
        yield from _looked_for(moving, ways, over)


def _pairs(network: Network) -> FloatArray:
    found = np.zeros((network.rank_count, network.rank_count))
    for chunk in network.instance.chunks:
        found[chunk.sources[0], chunk.targets[0]] += chunk.size_bytes
    np.fill_diagonal(found, 0.0)
    return found


def _work(network: Network, distances: FloatArray) -> Iterator[float]:
    """Weighted time that each chunk takes on resources at least."""
    for chunk in network.instance.chunks:
        ways = distances[list(chunk.sources)][:, list(chunk.targets)]
        if ways.size:
            yield chunk.size_bytes * float(ways.max() if chunk.reduces else ways.min(axis=0).max())


def _work_of_pairs(size_bytes: FloatArray, distances: FloatArray) -> float:
    """Weighted time that all chunks together take on resources at least."""
    return float((size_bytes * np.where(size_bytes > 0.0, distances, 0.0)).sum())


def _looked_for(size_bytes: FloatArray, ways: _Ways, over: Callable[[], bool]) -> Iterator[tuple[FloatArray, float]]:
    """Yield the lengths of every round, with the work under them."""
    lengths = ways.lengths_at_first()
    for done in range(min(_ROUNDS, _MOST_WORK // ways.work)):
        if over():
            return
        distances = ways.distances(lengths)
        yield lengths, _work_of_pairs(size_bytes, distances)
        loads = ways.loads_ns(distances, lengths, size_bytes)
        lengths = lengths * np.exp(_FIRST_STEP / (1.0 + _SHORTENING * done) * loads / loads.max())


class _Ways:
    """The links of a network as arrays."""

    def __init__(self, network: Network) -> None:
        topology = network.topology
        links = [topology.links[k] for k in network.used_links]
        self._count = network.rank_count
        self._resource_count = len(topology.resources)
        self._source = np.array([k.source for k in links])
        self._target = np.array([k.target for k in links])
        self._ns_per_byte = np.array([1.0 / k.gbps for k in links])
        pairs = [(index, r) for index, k in enumerate(links) for r in k.resources]
        self._holding, self._held = np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])
        into: list[list[int]] = [[] for _ in range(self._count)]
        for index, k in enumerate(links):
            into[k.target].append(index)
        # [ranks, links into one]: -1 where there are fewer.
        self._into = np.array([of + [-1] * (max(map(len, into)) - len(of)) for of in into])

    @property
    def work(self) -> int:
        """Entries of arrays that a round goes through."""
        return self._count * (self._into.size + self._count**2)

    def lengths_at_first(self) -> FloatArray:
        found = np.zeros(self._resource_count)
        found[self._held] = 1.0
        return found

    def distances(self, lengths: FloatArray) -> FloatArray:
        """Distances between ranks, [ranks, ranks]; infinite where nothing leads from one to the other."""
        found = np.full((self._count, self._count), np.inf)
        np.fill_diagonal(found, 0.0)
        found[self._source, self._target] = self._of_links(lengths)
        for via in range(self._count):
            np.minimum(found, found[:, via, None] + found[None, via, :], out=found)
        return found

    def loads_ns(self, distances: FloatArray, lengths: FloatArray, size_bytes: FloatArray) -> FloatArray:
        """Load of each resource, [resources], with all chunks on their shortest ways, in equal shares. From each rank,
        what goes on through another is passed back to the links into it, the farthest rank first."""
        of_links = self._of_links(lengths)
        through = size_bytes.copy()
        carried = np.zeros(len(of_links))
        everyone = np.arange(self._count)
        order = np.argsort(-np.where(np.isfinite(distances), distances, -1.0), axis=1, kind="stable")
        for at in order.T:
            links = self._into[at]
            before = self._source[links]
            here = distances[everyone, at][:, None]
            along = distances[everyone[:, None], before] + of_links[links]
            tight = (links >= 0) & (along <= here * (1.0 + 1e-9)) & (here > 0.0)
            # Resources of hardly any length may leave a rank no nearer than the one after it.
            share = tight / np.maximum(tight.sum(axis=1, keepdims=True), 1) * through[everyone, at][:, None]
            np.add.at(carried, links, share)
            np.add.at(through, (np.broadcast_to(everyone[:, None], before.shape), before), share)
        found = np.zeros(self._resource_count)
        np.add.at(found, self._held, (carried * self._ns_per_byte)[self._holding])
        return found

    def _of_links(self, lengths: FloatArray) -> FloatArray:
        """Length of each link from those of its resources, [links]."""
        of_resources = np.bincount(self._holding, weights=lengths[self._held], minlength=len(self._source))
        return np.asarray(of_resources * self._ns_per_byte)
