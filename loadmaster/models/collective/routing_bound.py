r"""Routing as a proof: the linear relaxation of which links chunks take, below every schedule of an instance.

Of the published program (:mod:`loadmaster.models.collective.taccl.routing`) these are restrictions, and left out: few
hops alone, one copy to each rank, nothing that is not passed on, symmetric routes as such, and M. What is left holds
for every schedule:

Variables, for chunks c of one target each, 0 <= x <= 1:
    time           at least the best of the combinatorial bounds, so that it may be used below
    x[c,k]         whether the way by which the target got c first takes link k
and for chunks of several targets, of all links that brought c to a rank for the first time.

Minimize time subject to
(B1)  time >= h_p + sum of bytes / gbps x[c,k] over the links k that hold p, for every resource p - `carry_on_resources`
(B2)  time >= sum of transfer x[c,k] for chunks of one target: a way takes its links one after another; it is no faster
      in messages that carry more - `follow_the_way`
(B3)  a way leaves its source, arrives at its target, and leaves other ranks as often as it arrives - `keep_the_way`
(B4)  chunks of several targets: each target that is no source gets c from somewhere, a link out of a rank that is no
      source is no more used than links into it, and a node with targets but no source is entered - `bring_to_all`

h_p is what p's time has besides bytes: the least head + message_ns + tail over the pairs (c, k) on p, where head is
the distance from c's sources to k, and tail that from k to a target (for one target; else the latency alone); but no
more than the time is known to be, so that (B1) holds for a p that nothing uses.

Pairs with head + transfer + tail > ``within_ns`` are left out: no schedule that takes ``within_ns`` or less uses them.
So the answer is that every schedule takes min(optimum, within_ns) or more; no solution means more than within_ns.

**Aliasing is no restriction here.** The program is linear, and a symmetry of the instance maps its points onto points
of the same time. The average of a point's images under the whole group is a point too (the set is convex), has the same
time, and equal values on orbits. So the least time is found among points with one variable for each orbit. Of a program
with integers that would not hold: averages are no integers.

**Divisible chunks.** The program of one byte of a chunk, with its cost in (B2) and in heads and tails, holds for every
byte; so it does for their average, whose x carries the chunk's bytes in (B1).

Reductions: time reversal keeps bytes, ways and distances, so that the bound of the reversed instance holds for sums
with one target each.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.collective.aliasing import Aliases, IntArray
from loadmaster.models.collective.bounds.network import NEVER, Network
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.symmetry import holders_of
from loadmaster.solvers.program import INFINITY, Program, ProgramBuilder

# Solvers' objectives are right to some digits; a bound is rounded down by this share before it is rounded up to a
# nanosecond.
_TOLERANCE = 1e-6


def formulate(
    instance: Instance, known_ns: int, within_ns: int | None = None, *, divisible: bool = False
) -> RoutingBound:
    """The relaxation of an instance.

    Args:
        known_ns: a proved bound, from :func:`loadmaster.models.collective.bounds.lower_bound`.
        within_ns: the time of a known schedule; None: all links count.
        divisible: chunks may be cut into any number of parts.

    Raises:
        InputError: the instance combines.
    """
    return RoutingBound(instance, known_ns, within_ns, divisible=divisible)


class RoutingBound:
    """The program, and what its value proves.

    Attributes:
        program: times in nanoseconds; no integers.
    """

    def __init__(self, instance: Instance, known_ns: int, within_ns: int | None, *, divisible: bool) -> None:
        if instance.combines:
            raise InputError("chunks", "sums", "are not routed", "Bound the reversed instance, or form 'gather'.")
        self.instance, self._known_ns, self._within_ns = instance, known_ns, within_ns
        self._network = Network(instance, divisible=divisible)
        self._aliases = Aliases(instance)
        self._chunk, self._link, self._beside_ns = self._pairs()
        orbit: IntArray = self._aliases.of_links(self._chunk, self._link) if len(self._link) else self._link
        self._builder = ProgramBuilder()
        self._time = int(self._builder.columns("time", (), cost=1.0, lower=float(known_ns), upper=INFINITY))
        count = int(orbit.max()) + 1 if len(orbit) else 0
        self._taken = self._builder.columns("taken", count, lower=0.0, upper=1.0)[orbit]
        first = self._aliases.chunks
        self._of_chunk: dict[int, list[int]] = {
            c: [] for c, chunk in enumerate(instance.chunks) if first[c] == c and chunk.size_bytes
        }
        for p, c in enumerate(self._chunk.tolist()):
            if c in self._of_chunk:
                self._of_chunk[c].append(p)
        self.carry_on_resources()
        self.follow_the_way()
        self.keep_the_way()
        self.bring_to_all()
        self.program: Program = self._builder.build()
        del self._builder

    def proved_ns(self, value: float | None) -> int:
        """What every schedule takes at least.

        Args:
            value: a bound of the program, as its solver reports; None: it has no solution.
        """
        if value is None:
            return NEVER if self._within_ns is None else self._within_ns
        least = max(self._known_ns, math.ceil(value * (1.0 - _TOLERANCE)))
        return least if self._within_ns is None else min(least, self._within_ns)

    def carry_on_resources(self) -> None:
        """(B1)"""
        links, first = self.instance.topology.links, self._aliases.links
        size_bytes = np.array([c.size_bytes for c in self.instance.chunks], dtype=np.float64)[self._chunk]
        load = size_bytes / np.array([k.gbps for k in links])[self._link]
        order = np.argsort(self._link, kind="stable")
        ends = np.searchsorted(self._link[order], np.arange(len(links) + 1))
        seen: set[tuple[int, ...]] = set()
        block = self._builder.row_list("carry_on_resources")
        for held in holders_of(self.instance.topology):
            # Resources with links of the same orbits have equal rows, or nearly: to leave one out is no restriction.
            look = tuple(sorted(int(first[k]) for k in held))
            pairs = np.concatenate([order[ends[k] : ends[k + 1]] for k in held]) if held else order[:0]
            if look in seen or not len(pairs):
                continue
            seen.add(look)
            columns, row = np.unique(self._taken[pairs], return_inverse=True)
            value = np.bincount(row.ravel(), weights=load[pairs])
            beside_ns = min(self._known_ns, int(self._beside_ns[pairs].min()))
            block.add([self._time, *columns.tolist()], [1.0, *(-value).tolist()], lower=float(beside_ns))
        block.done()

    def follow_the_way(self) -> None:
        """(B2)"""
        block = self._builder.row_list("follow_the_way")
        for c, pairs in self._of_chunk.items():
            if self._moves(c):
                size_bytes = self._network.least_bytes(self.instance.chunks[c].size_bytes)
                lat = [-float(self.instance.topology.links[self._link[p]].transfer_ns(size_bytes)) for p in pairs]
                block.add([self._time, *(int(self._taken[p]) for p in pairs)], [1.0, *lat], lower=0.0)
        block.done()

    def keep_the_way(self) -> None:
        """(B3)"""
        block = self._builder.row_list("keep_the_way")
        for c, pairs in self._of_chunk.items():
            chunk = self.instance.chunks[c]
            if not self._moves(c):
                continue
            net: dict[int, dict[int, float]] = {r: {} for r in (*chunk.sources, *chunk.targets)}
            for p in pairs:
                link, column = self.instance.topology.links[self._link[p]], int(self._taken[p])
                for r, value in ((link.source, -1.0), (link.target, 1.0)):
                    terms = net.setdefault(r, {})
                    terms[column] = terms.get(column, 0.0) + value
            for r, terms in net.items():
                if r not in chunk.sources:
                    value = float(r in chunk.targets)
                    block.add(list(terms), list(terms.values()), lower=value, upper=value)
        block.done()

    def bring_to_all(self) -> None:
        """(B4)"""
        topology = self.instance.topology
        block = self._builder.row_list("bring_to_all")
        for c, pairs in self._of_chunk.items():
            chunk = self.instance.chunks[c]
            if self._moves(c):
                continue
            into: dict[int, dict[int, float]] = defaultdict(dict)
            enter: dict[int, dict[int, float]] = defaultdict(dict)
            for p in pairs:
                link, column = topology.links[self._link[p]], int(self._taken[p])
                into[link.target][column] = into[link.target].get(column, 0.0) + 1.0
                if topology.crosses(link):
                    terms = enter[topology.node_of[link.target]]
                    terms[column] = terms.get(column, 0.0) + 1.0
            for r in set(chunk.targets).difference(chunk.sources):
                block.add(list(into[r]), list(into[r].values()), lower=1.0)
            for p in pairs:
                source = topology.links[self._link[p]].source
                if source not in chunk.sources:
                    terms = dict(into[source])
                    terms[int(self._taken[p])] = terms.get(int(self._taken[p]), 0.0) - 1.0
                    block.add(list(terms), list(terms.values()), lower=0.0)
            homes = {topology.node_of[r] for r in chunk.sources}
            for node in {topology.node_of[r] for r in chunk.targets} - homes:
                block.add(list(enter[node]), list(enter[node].values()), lower=1.0)
        block.done()

    def _moves(self, c: int) -> bool:
        """Whether a chunk has one target, at which it does not start."""
        chunk = self.instance.chunks[c]
        return len(chunk.targets) == 1 and chunk.targets[0] not in chunk.sources

    def _pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """[pairs] chunk, link, and head + message + tail, of all that ``within_ns`` leaves."""
        network = self._network
        numbers = [c for c, chunk in enumerate(self.instance.chunks) if chunk.size_bytes]
        found: list[tuple[IntArray, IntArray, IntArray]] = []
        source = np.array([k.source for k in self.instance.topology.links], dtype=np.int64)
        target = np.array([k.target for k in self.instance.topology.links], dtype=np.int64)
        for index, c in enumerate(numbers):
            chunk = self.instance.chunks[c]
            links = np.array(self.instance.usable_links[c], dtype=np.int64)
            distance = network.distance_ns[network.kind_of[index]]
            head = distance[list(chunk.sources)].min(axis=0)[source[links]]
            tail = distance[:, list(chunk.targets)].min(axis=1)[target[links]]
            costs = [self.instance.topology.links[k] for k in links]
            message = np.array([k.message_ns + k.latency_ns for k in costs], dtype=np.int64)
            alone_bytes = network.least_bytes(chunk.size_bytes)
            transfer = np.array([k.transfer_ns(alone_bytes) for k in costs], dtype=np.int64)
            # A way, or a first copy, never comes back to a source.
            kept = (head + transfer + tail < NEVER) & ~np.isin(target[links], chunk.sources)
            if self._within_ns is not None:
                kept &= head + transfer + tail <= self._within_ns
            found.append((np.full(int(kept.sum()), c, dtype=np.int64), links[kept], (head + message + tail)[kept]))
        if not found:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        chunks, pairs, beside = (np.concatenate(of) for of in zip(*found, strict=True))
        return chunks, pairs, beside
