"""Step 2 of TACCL's pipeline: routes get an order on every link and on every other resource, by a greedy heuristic.

Rounds: of all hops whose chunk is on its way, the one that could start first is scheduled, at its earliest; ties go to
the chunk with the longest path from now on, or to that with the shortest path until now. Paths are measured in time.
Backward, the same is done from the ends of the paths to their starts, and the order turned round. With symmetries, a
round schedules a whole orbit: orders of images are images of orders.

[Shah23]'s chunk_order(r1, r2) is :attr:`Ordered.chunk_order`; its switch_send_order(r) and switch_recv_order(r) are the
orders of a switch's egress and ingress ports, here of any resource: :attr:`Ordered.resource_order`.

Hops of one link may then travel together; each message starts as early as the order allows. Source: [Shah23], section
5.5.2.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import networkx as nx

from loadmaster.models.collective.hops import Hop, Routes, colliding, hops_of, orbits
from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send

Heuristic = Literal["longest path from now first", "shortest path until now first"]
HEURISTICS: tuple[Heuristic, ...] = ("longest path from now first", "shortest path until now first")


@dataclass(frozen=True)
class Ordered:
    """Hops with a total order that every resource follows. ``sequence``: indices of the hops, each after all that it
    waits for. ``orbit_of``: per hop, the first hop of its orbit, which start together; itself where symmetry is not
    kept."""

    instance: Instance
    hops: tuple[Hop, ...]
    sequence: tuple[int, ...]
    orbit_of: tuple[int, ...]

    @cached_property
    def resource_order(self) -> tuple[tuple[int, ...], ...]:
        """Hops that hold each resource, in order."""
        found: list[list[int]] = [[] for _ in self.instance.topology.resources]
        for h in self.sequence:
            for resource in self.instance.topology.links[self.hops[h].link].resources:
                found[resource].append(h)
        return tuple(map(tuple, found))

    @cached_property
    def chunk_order(self) -> Mapping[int, tuple[int, ...]]:
        """Chunks on each link in use, in order."""
        found: dict[int, list[int]] = {}
        for h in self.sequence:
            found.setdefault(self.hops[h].link, []).append(self.hops[h].chunk)
        return {link: tuple(found[link]) for link in sorted(found)}

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """Hops just before each hop, on each resource of its link that has one."""
        found: list[list[int]] = [[] for _ in self.hops]
        for hops in self.resource_order:
            for earlier, later in itertools.pairwise(hops):
                if earlier not in found[later]:
                    found[later].append(earlier)
        return tuple(map(tuple, found))


def order(
    instance: Instance, routes: Routes, heuristic: Heuristic = HEURISTICS[0], *, backward: bool = False
) -> Ordered:
    """Order the hops of routes; without the instance's symmetries if routes break these or their images collide.
    ``InputError``: a route is not a tree, see :func:`loadmaster.models.collective.hops.hops_of`."""
    hops = hops_of(instance, routes)
    orbit_of = _kept_orbits(instance, hops)
    links, chunks = instance.topology.links, instance.chunks
    lasts = [links[hop.link].transfer_ns(chunks[hop.chunk].size_bytes) for hop in hops]
    after: list[tuple[int, ...]] = [hop.after for hop in hops]
    opens = _successors(after)
    if backward:
        after, opens = opens, after
    until, from_now = _longest(after, opens, lasts), _longest(opens, after, lasts)
    by_length = [(-from_now[h], until[h]) for h in range(len(hops))]
    if heuristic == "shortest path until now first":
        by_length = [(until[h], -from_now[h]) for h in range(len(hops))]
    sequence = _rounds(instance, hops, orbit_of, after, opens, by_length)
    return Ordered(instance, hops, tuple(reversed(sequence)) if backward else tuple(sequence), orbit_of)


def order_of(instance: Instance, sends: Sequence[Send]) -> tuple[Ordered, tuple[tuple[int, ...], ...]]:
    """The order that a schedule follows, and its messages as hops of it. ``InputError``: the schedule's routes are not
    trees: a chunk is sent somewhere twice, say."""
    between = instance.topology.link_between
    routes: list[list[int]] = [[] for _ in instance.chunks]
    start_of: dict[tuple[int, int], int] = {}
    for send in sends:
        k = between[send.source, send.target]
        for chunk in send.chunks:
            routes[chunk].append(k)
            start_of[chunk, k] = send.start_ns
    hops = hops_of(instance, routes)
    begins = [start_of[hop.chunk, hop.link] for hop in hops]
    orbit_of = _kept_orbits(instance, hops)
    if any(begins[h] != begins[orbit] for h, orbit in enumerate(orbit_of)):
        orbit_of = tuple(range(len(hops)))
    # Hops that start together on one resource are those of one message: any order of them will do, if images agree.
    sequence = sorted(range(len(hops)), key=lambda h: (begins[h], orbit_of[h], h))
    place = {(hop.chunk, hop.link): h for h, hop in enumerate(hops)}
    rank = {h: i for i, h in enumerate(sequence)}
    messages = []
    for send in sends:
        k = between[send.source, send.target]
        carried = [place[chunk, k] for chunk in send.chunks if instance.chunks[chunk].size_bytes]
        if carried:
            messages.append(tuple(sorted(carried, key=rank.__getitem__)))
    return Ordered(instance, hops, tuple(sequence), orbit_of), tuple(messages)


def _kept_orbits(instance: Instance, hops: Sequence[Hop]) -> tuple[int, ...]:
    """The orbits of hops where all their images are hops and can start together; otherwise each hop alone."""
    pairs = [(hop.chunk, hop.link) for hop in hops]
    orbit_of = orbits(instance, pairs)
    if orbit_of is None or colliding(instance, pairs, orbit_of):
        return tuple(range(len(hops)))
    return orbit_of


def _rounds(
    instance: Instance,
    hops: Sequence[Hop],
    orbit_of: Sequence[int],
    after: Sequence[Sequence[int]],
    opens: Sequence[Sequence[int]],
    priority: Sequence[tuple[int, int]],
) -> list[int]:
    """The order in which hops are scheduled, orbit by orbit."""
    links, chunks = instance.topology.links, instance.chunks
    members: dict[int, list[int]] = {}
    for h, orbit in enumerate(orbit_of):
        members.setdefault(orbit, []).append(h)
    chunk_ns = [0] * len(hops)  # when what the hop waits for has arrived
    free_ns = [0] * len(instance.topology.resources)
    waits = [len(a) for a in after]

    def earliest(h: int) -> int:
        return max(chunk_ns[h], *(free_ns[r] for r in links[hops[h].link].resources))

    # Earliest starts only grow: one that has grown since it was put in goes back in.
    ready = [(0, priority[h], h) for h in members if not waits[h]]
    heapq.heapify(ready)
    sequence: list[int] = []
    while ready:
        noted_ns, _, orbit = heapq.heappop(ready)
        start_ns = earliest(orbit)
        if start_ns > noted_ns:
            heapq.heappush(ready, (start_ns, priority[orbit], orbit))
            continue
        for h in members[orbit]:
            link, size_bytes = links[hops[h].link], chunks[hops[h].chunk].size_bytes
            sequence.append(h)
            for resource in link.resources:
                free_ns[resource] = start_ns + link.occupancy_ns(size_bytes)
            for later in opens[h]:
                waits[later] -= 1
                chunk_ns[later] = max(chunk_ns[later], start_ns + link.transfer_ns(size_bytes))
                if not waits[later] and orbit_of[later] == later:
                    heapq.heappush(ready, (earliest(later), priority[later], later))
    return sequence


def _successors(after: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in after]
    for h, earlier in enumerate(after):
        for e in earlier:
            found[e].append(h)
    return list(map(tuple, found))


def _longest(after: Sequence[Sequence[int]], opens: Sequence[Sequence[int]], lasts: Sequence[int]) -> list[int]:
    """Time along the longest path that ends with each hop."""
    found = list(lasts)
    waits = [len(a) for a in after]
    ready = [h for h, count in enumerate(waits) if not count]
    for h in ready:
        for later in opens[h]:
            found[later] = max(found[later], found[h] + lasts[later])
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    return found


# Hops of one link that travel as one message, in order.
Message = tuple[int, ...]


def alone(ordered: Ordered) -> tuple[Message, ...]:
    """Make every hop a message of its own."""
    return tuple((h,) for h in ordered.sequence)


def starts(ordered: Ordered, messages: Sequence[Message]) -> tuple[int, ...]:
    """Earliest start of each message. ``networkx.NetworkXUnfeasible``: a message waits for itself: its chunks cannot
    travel together in this order."""
    links = ordered.instance.topology.links
    message_of = {h: m for m, hops in enumerate(messages) for h in hops}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(messages)))
    # Weights: from the start of one message to the earliest start of the other.
    for m, hops in enumerate(messages):
        for h in hops:
            for earlier in ordered.hops[h].after:
                before = message_of[earlier]
                weight_ns = links[ordered.hops[earlier].link].transfer_ns(_size_bytes(ordered, messages[before]))
                _require(graph, before, m, weight_ns)
            for earlier in ordered.before[h]:
                before = message_of[earlier]
                if before != m:
                    weight_ns = links[ordered.hops[earlier].link].occupancy_ns(_size_bytes(ordered, messages[before]))
                    _require(graph, before, m, weight_ns)
    found = [0] * len(messages)
    for m in nx.topological_sort(graph):
        for later, data in graph[m].items():
            found[later] = max(found[later], found[m] + data["ns"])
    return tuple(found)


def sends(ordered: Ordered, messages: Sequence[Message]) -> tuple[Send, ...]:
    """The schedule, as a plan holds it. Raises as :func:`starts` does."""
    chunks, links, found = ordered.instance.chunks, ordered.instance.topology.links, []
    for start_ns, message in zip(starts(ordered, messages), messages, strict=True):
        link = links[ordered.hops[message[0]].link]
        carried = tuple(sorted(ordered.hops[h].chunk for h in message))
        found.append(Send(start_ns, link.source, link.target, carried, chunks[carried[0]].reduces))
    return tuple(sorted(found, key=lambda s: (s.start_ns, s.source, s.target)))


def time_ns(ordered: Ordered, messages: Sequence[Message]) -> int:
    """Arrival of the last message. Raises as :func:`starts` does."""
    links = ordered.instance.topology.links
    arrivals = (
        start_ns + links[ordered.hops[message[0]].link].transfer_ns(_size_bytes(ordered, message))
        for start_ns, message in zip(starts(ordered, messages), messages, strict=True)
    )
    return max(arrivals, default=0)


def runs_within(stretch: Sequence[int], limit: int) -> list[Message]:
    """All runs of at most ``limit`` neighbours of a stretch of hops."""
    ends = itertools.product(range(len(stretch)), range(1, limit + 1))
    return [tuple(stretch[first : first + length]) for first, length in ends if first + length <= len(stretch)]


def _size_bytes(ordered: Ordered, message: Message) -> int:
    return sum(ordered.instance.chunks[ordered.hops[h].chunk].size_bytes for h in message)


def _require(graph: nx.DiGraph, before: int, later: int, ns: int) -> None:
    known = graph.get_edge_data(before, later)
    graph.add_edge(before, later, ns=ns if known is None else max(ns, known["ns"]))
