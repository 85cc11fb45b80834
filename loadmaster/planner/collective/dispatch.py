"""One run of symmetric event-driven list scheduling.

Time goes from event to event: an arrival, or a resource that becomes free. At each, every orbit of links whose
resources are free makes an offer (the chunks its representative would carry, and a score); offers are taken best first
until none is left. Taking one starts a message on every link of the orbit, so the state stays its own image under the
symmetries and only representatives are ever looked at.

Example: two chunks of 100 bytes at rank 0, wanted by ranks 1 and 2 of a line 0 -> 1 -> 2, where a message costs 100 ns
and a byte 1 ns. At 0 the first wire offers both chunks, equally urgent; messages of one chunk are asked for, and chunk
0 goes. At 200 it is at rank 1 and its wire is free: the first wire offers chunk 1, the second chunk 0, and both go. At
400 the second wire sends chunk 1, which arrives at 600.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence

from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.criticality import Parameters, Scores
from loadmaster.planner.collective.scheduling_graph import (
    NOTHING_BEFORE,
    UNREACHED,
    Orbit,
    Release,
    SchedulingGraph,
    bits,
)

# What a used link is worth to a switch that wants few in use, and costs one that wants many, in typical transfers.
CONNECTION_WEIGHT = 0.5


class Dispatch:
    """State of one run of list scheduling. ``have``: per rank, chunks that are there. ``planned``: and those on their
    way. ``entered``: per island, chunks that some rank of it has or will have."""

    def __init__(self, graph: SchedulingGraph, parameters: Parameters, seed: int, release: Release) -> None:
        self.graph = graph
        self.parameters = parameters
        self.random = random.Random(seed)
        self.now = 0
        self.forced = False
        self.have = [0] * graph.rank_count
        self.planned = list(graph.start)
        self.entered = [0] * len(graph.islands)
        self.free_at = [0] * len(graph.topology.resources)
        self.taken = {resource: list(spans) for resource, spans in release.taken.items()}
        # Per orbit, what its source had when none of it was of use: only what comes after that can be.
        self.useless = [0] * len(graph.orbits)
        self.sends: list[Send] = []
        self.used: set[int] = set()
        self.arrivals: list[tuple[int, int, int, int]] = []
        self.events: list[int] = [0]
        # Per rank, (time, chunks) of what was sent to it, in order of dispatch.
        self.coming: list[deque[tuple[int, int]]] = [deque() for _ in range(graph.rank_count)]
        self.arrives: dict[tuple[int, int], int] = {}
        for rank, mask in enumerate(graph.start):
            self.entered[graph.island_of[rank]] |= mask
            for chunk in bits(mask):
                self._arrive_at(release.ready_ns.get((chunk, rank), 0), rank, 1 << chunk)
        for spans in self.taken.values():
            for _, end in spans:
                heapq.heappush(self.events, end)
        self.left = sum(len(goals) for goals in graph.goals)
        self.scores = Scores(graph, parameters, self.random, self.planned)

    def run(self, limit_ns: int | None, cancelled: Callable[[], bool] | None) -> list[Send] | None:
        """Dispatch until every chunk is on its way to every target; None if stuck, cancelled, or not done before the
        limit."""
        while self.left:
            if not self.events:
                # Nothing is on its way: whoever waits for more waits in vain.
                self.forced = True
                if not self._dispatch_all():
                    return None
                self.forced = False
                continue
            self.now = heapq.heappop(self.events)
            while self.events and self.events[0] == self.now:
                heapq.heappop(self.events)
            if (limit_ns is not None and self.now >= limit_ns) or (cancelled is not None and cancelled()):
                return None
            while self.arrivals and self.arrivals[0][0] <= self.now:
                _, _, rank, mask = heapq.heappop(self.arrivals)
                self.have[rank] |= mask
            self._dispatch_all()
        return self.sends

    def _arrive_at(self, time_ns: int, rank: int, mask: int) -> None:
        heapq.heappush(self.arrivals, (time_ns, len(self.arrives), rank, mask))
        heapq.heappush(self.events, time_ns)
        if self.parameters.linger:
            self.coming[rank].append((time_ns, mask))
        for chunk in bits(mask):
            self.arrives[chunk, rank] = time_ns

    def _dispatch_all(self) -> int:
        """Take offers until none is left; return how many were taken."""
        offers: list[tuple[float, int, Orbit, tuple[int, ...]]] = []
        for index, orbit in enumerate(self.graph.orbits):
            if self.have[orbit.source] & ~self.useless[index] and self._free(orbit.resources):
                self._push(offers, index, orbit)
        taken = 0
        while offers:
            _, index, orbit, chunks = heapq.heappop(offers)
            if not self._free(orbit.resources):
                continue
            # Offers that were taken since may have left this one with other chunks, or none.
            if any(not self._may_carry(orbit) >> c & 1 for c in chunks):
                self._push(offers, index, orbit)
            elif self._take(orbit, chunks):
                taken += 1
        return taken

    def _free(self, resources: Sequence[int]) -> bool:
        return all(self.free_at[resource] <= self.now for resource in resources)

    def _fits(self, orbit: Orbit, occupancy_ns: int) -> bool:
        """Return whether resources taken beforehand leave room for a message now, on all images."""
        if not self.taken:
            return True
        end = self.now + occupancy_ns
        links = self.graph.topology.links
        for element in orbit.moves:
            for resource in links[orbit.images[element]].resources:
                for since, until in self.taken.get(resource, ()):
                    if since < end and self.now < until:
                        return False
        return True

    def _may_carry(self, orbit: Orbit) -> int:
        """Return the chunks that may go over an orbit's representative now."""
        return self._of_use(orbit, self.have[orbit.source])

    def _of_use(self, orbit: Orbit, here: int) -> int:
        """Filter chunks at an orbit's source: those that may go over it."""
        graph, to = self.graph, orbit.target
        fresh = here & graph.spreads[orbit.link] & ~self.planned[to]
        if orbit.crosses and self.parameters.enter_once:
            fresh &= ~self.entered[graph.island_of[to]] | graph.partial
        found = fresh & graph.wanted[to]
        for chunk in bits(fresh & graph.partial & ~graph.wanted[to]):
            if self._brings_nearer(chunk, orbit):
                found |= 1 << chunk
        for _, mask in graph.forwards[orbit.link]:
            found |= here & mask
        return found

    def _brings_nearer(self, chunk: int, orbit: Orbit) -> bool:
        """Return whether a link is on the shortest way of a chunk to an unserved target."""
        graph = self.graph
        distance = graph.distance[graph.class_of[chunk]]
        holders = [r for r in range(graph.rank_count) if self.planned[r] >> chunk & 1]
        over = graph.transfer_ns[orbit.link] + 1.0
        return any(
            over + distance[orbit.target][goal] <= min(distance[r][goal] for r in holders)
            for goal in graph.goals[chunk]
            if not self.planned[goal] >> chunk & 1
        )

    def _push(self, offers: list[tuple[float, int, Orbit, tuple[int, ...]]], index: int, orbit: Orbit) -> None:
        mask = self._may_carry(orbit)
        if not mask:
            self.useless[index] = self.have[orbit.source]
            return
        parameters = self.parameters
        batch, hold = (
            (parameters.batch, parameters.hold) if orbit.crosses else (parameters.local_batch, parameters.local_hold)
        )
        if parameters.linger and not self.forced and batch > 1 and self._more_comes(orbit, mask):
            return
        if hold > 1 and not self.forced and mask.bit_count() < min(hold, self._may_come(orbit)):
            return
        if parameters.taper < 1.0 and orbit.crosses and batch > 1:
            batch = min(batch, max(1, math.floor(self._may_come(orbit) * parameters.taper)))
        ranked = self.scores.best(orbit, mask, batch)
        if not self.forced and parameters.patient:
            ranked = [(score, c) for score, c in ranked if not self._sooner_elsewhere(orbit, c)]
        if not ranked:
            return
        score = self.scores.of_message(ranked)
        chunks = tuple(sorted(c for _, c in ranked))
        if len(orbit.fixing) > 1:
            group = self.graph.group
            chunks = tuple(sorted({group[e].chunks[c] for e in orbit.fixing for c in chunks}))
            if any(not mask >> c & 1 for c in chunks):
                return
        heapq.heappush(offers, (-score - self._connection_bonus(orbit), index, orbit, chunks))

    def _may_come(self, orbit: Orbit) -> int:
        """Count the chunks that could still go over a link, now or later."""
        graph, to = self.graph, orbit.target
        fresh = graph.spreads[orbit.link] & ~self.planned[to] & graph.wanted[to]
        if orbit.crosses and self.parameters.enter_once:
            fresh &= ~self.entered[graph.island_of[to]] | graph.partial
        around = 0
        for rank in graph.islands[graph.island_of[orbit.source]]:
            around |= self.planned[rank]
        for _, mask in graph.forwards[orbit.link]:
            fresh |= mask & around
        return fresh.bit_count()

    def _more_comes(self, orbit: Orbit, mask: int) -> bool:
        """Return whether waiting a little would let more chunks travel along."""
        message_ns = self.graph.topology.links[orbit.link].message_ns
        until = self.now + self.parameters.linger * message_ns
        coming = self.coming[orbit.source]
        while coming and coming[0][0] <= self.now:
            coming.popleft()
        more = 0
        for time_ns, chunks in coming:
            if self.now < time_ns <= until:
                more |= chunks
        return bool(more & ~mask and self._of_use(orbit, more) & ~mask)

    def _sooner_elsewhere(self, orbit: Orbit, chunk: int) -> bool:
        """Return whether a chunk would arrive sooner by a faster link, or, if few ranks want it, by a shorter way."""
        if self.graph.partial >> chunk & 1:
            return not self._brings_nearer(chunk, orbit)
        if not self.graph.faster[orbit.link] or not self.graph.spreading >> chunk & 1:
            return False
        topology = self.graph.topology
        done = self.now + self.graph.transfer_ns[orbit.link]
        for k in self.graph.faster[orbit.link]:
            link = topology.links[k]
            at = self.arrives.get((chunk, link.source))
            if at is None:
                continue
            start = max(self.now, at, *(self.free_at[resource] for resource in link.resources))
            if start + self.graph.transfer_ns[k] < done:
                return True
        return False

    def _connection_bonus(self, orbit: Orbit) -> float:
        if orbit.switch is None or not self.graph.instance.connections:
            return 0.0
        wish = self.graph.instance.connections[orbit.switch]
        return wish * CONNECTION_WEIGHT * self.graph.transfer_ns[orbit.link] * (orbit.link in self.used)

    def _take(self, orbit: Orbit, chunks: tuple[int, ...]) -> bool:
        """Start a message on every link of an orbit; False if its images are in each other's way."""
        graph = self.graph
        links = graph.topology.links
        occupancy, transfer = graph.message_ns(orbit.link, chunks)
        if not self._fits(orbit, occupancy):
            return False
        messages = []
        for element in orbit.moves:
            image = graph.group[element].chunks
            carried = tuple(sorted(image[c] for c in chunks))
            messages.append((links[orbit.images[element]], carried, sum(1 << c for c in carried)))
        if not graph.free_action:
            # With ranks that stay where they are, two images may bring one chunk to one rank.
            brought = [(link.target, c) for link, carried, _ in messages for c in carried]
            if len(set(brought)) < len(brought):
                return False
        until = self.now + occupancy
        for link, carried, mask in messages:
            self.sends.append(Send(self.now, link.source, link.target, carried))
            for resource in link.resources:
                self.free_at[resource] = until
            moving = mask & ~graph.spreading
            self.have[link.source] &= ~moving
            self.planned[link.source] &= ~moving
            self.left -= (mask & graph.wanted[link.target] & ~self.planned[link.target]).bit_count()
            self.planned[link.target] |= mask
            self.entered[graph.island_of[link.target]] |= mask
            self.scores.dispatched(link.target, mask & graph.spreading)
            self._arrive_at(self.now + transfer, link.target, mask)
        heapq.heappush(self.events, until)
        self.used.add(orbit.link)
        return True


def dispatch(
    graph: SchedulingGraph,
    parameters: Parameters,
    seed: int,
    *,
    release: Release = NOTHING_BEFORE,
    limit_ns: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Send, ...] | None:
    """List scheduling, once: sends in order of dispatch; None if stuck or not done before the limit."""
    sends = Dispatch(graph, parameters, seed, release).run(limit_ns, cancelled)
    return None if sends is None else tuple(sends)


def reachable(graph: SchedulingGraph) -> bool:
    """Return whether every chunk can reach its targets over the links of a graph."""
    return all(
        min(graph.distance[graph.class_of[c]][source][goal] for source in chunk.sources) < UNREACHED
        for c, chunk in enumerate(graph.instance.chunks)
        for goal in graph.goals[c]
    )
