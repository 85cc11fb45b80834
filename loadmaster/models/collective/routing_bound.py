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
(B4)  chunks of several targets: each target that is not a source gets c from somewhere, a link out of a rank that is
      not a source is used no more than links into it, and a node with targets but no source is entered - `bring_to_all`

h_p is the time of p without bytes: the least head + message_ns + tail over the pairs (c, k) on p, where head is
the distance from c's sources to k, and tail that from k to a target (for one target; else the latency alone); but no
more than the time is known to be, so that (B1) holds for a p that nothing uses.

Pairs with head + transfer + tail > ``within_ns`` are left out: no schedule that takes ``within_ns`` or less uses them.
So the answer is that every schedule takes min(optimum, within_ns) or more; no solution means more than within_ns.

**Aliasing restricts nothing here.** The program is linear, and a symmetry of the instance maps its points onto points
of the same time. The average of a point's images under the whole group is a point too (the set is convex), has the same
time, and equal values on orbits. So the least time is found among points with one variable for each orbit. Of a program
with integers that would not hold: averages are not integers.

**Divisible chunks.** The program of one byte of a chunk, with its cost in (B2) and in heads and tails, holds for every
byte; so it does for their average, whose x carries the chunk's bytes in (B1).

Reductions: time reversal keeps bytes, ways and distances, so that the bound of the reversed instance holds for sums
with one target each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.collective.bounds.network import NEVER, Network
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.symmetry import Aliases, IntArray, holders_of
from loadmaster.solvers.program import INFINITY, Program, ProgramBuilder

# Solvers' objectives are right to some digits; a bound is rounded down by this share before it is rounded up to a
# nanosecond.
_TOLERANCE = 1e-6


class RoutingBoundVariables:
    """The variables of one program, and the sets and figures that its rows are written from. ``chunk``, ``link``: c and
    k of every x [pairs]; ``beside_ns``: head + message + tail of each [pairs]. ``time``, ``taken``: the columns of
    time, and of x [pairs]. ``of_chunk``: the pairs of the first chunk of each orbit."""

    def __init__(
        self, b: ProgramBuilder, instance: Instance, known_ns: int, within_ns: int | None, *, divisible: bool
    ) -> None:
        self.instance, self.known_ns, self.within_ns = instance, known_ns, within_ns
        self.network = Network(instance, divisible=divisible)
        self.aliases = Aliases(instance)
        self.chunk, self.link, self.beside_ns = self._pairs()
        orbit: IntArray = self.aliases.of_links(self.chunk, self.link) if len(self.link) else self.link
        self.time = int(b.columns("time", (), cost=1.0, lower=float(known_ns), upper=INFINITY))
        count = int(orbit.max()) + 1 if len(orbit) else 0
        self.taken = b.columns("taken", count, lower=0.0, upper=1.0)[orbit]
        first = self.aliases.chunks
        self.of_chunk: dict[int, list[int]] = {
            c: [] for c, chunk in enumerate(instance.chunks) if first[c] == c and chunk.size_bytes
        }
        for p, c in enumerate(self.chunk.tolist()):
            if c in self.of_chunk:
                self.of_chunk[c].append(p)

    def moves(self, c: int) -> bool:
        """Return whether a chunk has one target, at which it does not start."""
        chunk = self.instance.chunks[c]
        return len(chunk.targets) == 1 and chunk.targets[0] not in chunk.sources

    def _pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """Chunk, link, and head + message + tail of all pairs that ``within_ns`` leaves: each [pairs]."""
        network = self.network
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
            if self.within_ns is not None:
                kept &= head + transfer + tail <= self.within_ns
            found.append((np.full(int(kept.sum()), c, dtype=np.int64), links[kept], (head + message + tail)[kept]))
        if not found:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, empty
        chunks, pairs, beside = (np.concatenate(of) for of in zip(*found, strict=True))
        return chunks, pairs, beside


@dataclass(frozen=True)
class RoutingBound:
    """The program, its times in nanoseconds and without integers, and what its value proves."""

    program: Program
    variables: RoutingBoundVariables

    def proved_ns(self, value: float | None) -> int:
        """Least time of every schedule that a bound of the program proves; None: it has no solution."""
        v = self.variables
        if value is None:
            return NEVER if v.within_ns is None else v.within_ns
        least = max(v.known_ns, math.ceil(value * (1.0 - _TOLERANCE)))
        return least if v.within_ns is None else min(least, v.within_ns)


def formulate(
    instance: Instance, known_ns: int, within_ns: int | None = None, *, divisible: bool = False
) -> RoutingBound:
    """The relaxation of an instance; ``known_ns`` is proved by :func:`loadmaster.models.collective.bounds.lower_bound`.
    ``within_ns``: the time of a known schedule; None: all links count. ``InputError``: the instance combines."""
    if instance.combines:
        raise InputError("chunks", "sums", "are not routed", "Bound the reversed instance, or form 'gather'.")
    b = ProgramBuilder()
    v = RoutingBoundVariables(b, instance, known_ns, within_ns, divisible=divisible)
    carry_on_resources(b, v)
    follow_the_way(b, v)
    keep_the_way(b, v)
    bring_to_all(b, v)
    return RoutingBound(b.build(), v)


def carry_on_resources(b: ProgramBuilder, v: RoutingBoundVariables) -> None:
    """Add (B1): the time covers what each resource carries."""
    links, first = v.instance.topology.links, v.aliases.links
    size_bytes = np.array([c.size_bytes for c in v.instance.chunks], dtype=np.float64)[v.chunk]
    load = size_bytes / np.array([k.gbps for k in links])[v.link]
    order = np.argsort(v.link, kind="stable")
    ends = np.searchsorted(v.link[order], np.arange(len(links) + 1))
    seen: set[tuple[int, ...]] = set()
    block = b.row_list("carry_on_resources")
    for held in holders_of(v.instance.topology):
        # Resources with links of the same orbits have equal rows, or nearly: to leave one out restricts nothing.
        look = tuple(sorted(int(first[k]) for k in held))
        pairs = np.concatenate([order[ends[k] : ends[k + 1]] for k in held]) if held else order[:0]
        if look in seen or not len(pairs):
            continue
        seen.add(look)
        columns, row = np.unique(v.taken[pairs], return_inverse=True)
        value = np.bincount(row.ravel(), weights=load[pairs])
        beside_ns = min(v.known_ns, int(v.beside_ns[pairs].min()))
        block.add([v.time, *columns.tolist()], [1.0, *(-value).tolist()], lower=float(beside_ns))
    block.done()


def follow_the_way(b: ProgramBuilder, v: RoutingBoundVariables) -> None:
    """Add (B2): the time covers the way of each chunk of one target."""
    block = b.row_list("follow_the_way")
    for c, pairs in v.of_chunk.items():
        if v.moves(c):
            size_bytes = v.network.least_bytes(v.instance.chunks[c].size_bytes)
            lat = [-float(v.instance.topology.links[v.link[p]].transfer_ns(size_bytes)) for p in pairs]
            block.add([v.time, *(int(v.taken[p]) for p in pairs)], [1.0, *lat], lower=0.0)
    block.done()


def keep_the_way(b: ProgramBuilder, v: RoutingBoundVariables) -> None:
    """Add (B3): a way leads from its source to its target."""
    block = b.row_list("keep_the_way")
    for c, pairs in v.of_chunk.items():
        chunk = v.instance.chunks[c]
        if not v.moves(c):
            continue
        net: dict[int, dict[int, float]] = {r: {} for r in (*chunk.sources, *chunk.targets)}
        for p in pairs:
            link, column = v.instance.topology.links[v.link[p]], int(v.taken[p])
            for r, value in ((link.source, -1.0), (link.target, 1.0)):
                terms = net.setdefault(r, {})
                terms[column] = terms.get(column, 0.0) + value
        for r, terms in net.items():
            if r not in chunk.sources:
                value = float(r in chunk.targets)
                block.add(list(terms), list(terms.values()), lower=value, upper=value)
    block.done()


def bring_to_all(b: ProgramBuilder, v: RoutingBoundVariables) -> None:
    """Add (B4): chunks of several targets get to every target."""
    topology = v.instance.topology
    block = b.row_list("bring_to_all")
    for c, pairs in v.of_chunk.items():
        chunk = v.instance.chunks[c]
        if v.moves(c):
            continue
        into: dict[int, dict[int, float]] = defaultdict(dict)
        enter: dict[int, dict[int, float]] = defaultdict(dict)
        for p in pairs:
            link, column = topology.links[v.link[p]], int(v.taken[p])
            into[link.target][column] = into[link.target].get(column, 0.0) + 1.0
            if topology.crosses(link):
                terms = enter[topology.node_of[link.target]]
                terms[column] = terms.get(column, 0.0) + 1.0
        for r in set(chunk.targets).difference(chunk.sources):
            block.add(list(into[r]), list(into[r].values()), lower=1.0)
        for p in pairs:
            source = topology.links[v.link[p]].source
            if source not in chunk.sources:
                terms = dict(into[source])
                terms[int(v.taken[p])] = terms.get(int(v.taken[p]), 0.0) - 1.0
                block.add(list(terms), list(terms.values()), lower=0.0)
        homes = {topology.node_of[r] for r in chunk.sources}
        for node in {topology.node_of[r] for r in chunk.targets} - homes:
            block.add(list(enter[node]), list(enter[node].values()), lower=1.0)
    block.done()
