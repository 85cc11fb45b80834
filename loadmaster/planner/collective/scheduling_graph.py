"""Graph that list scheduling works on: orbits of links, distances, islands, and which chunks each link may carry.

A :class:`SchedulingGraph` is made once for an instance and a choice of links
(:mod:`loadmaster.planner.collective.link_subsets`) and serves every restart. Sets of chunks are integers used as bit
masks.

A chunk with a single source and a single target moves: it is forwarded along links that bring it strictly nearer to its
target, so it can neither turn in circles nor be stranded. Every other chunk spreads: a rank receives it at most once,
from any rank that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from loadmaster.models.collective.instance import Instance, Symmetry
from loadmaster.models.collective.symmetry import closure
from loadmaster.planner.collective.routes import balanced_routes

# Distances are sums of whole nanoseconds kept in floats: none that is reached comes near this.
UNREACHED = 1e30


def bits(mask: int) -> Iterator[int]:
    """Yield the indices of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class Orbit:
    """All images of one link under the symmetries: one decision dispatches a message on each of them.

    Attributes:
        link: the representative.
        images: per element of the group, the link that the representative goes to.
        moves: per element of the group but repetitions, its index: one for each distinct image.
        fixing: elements that leave the representative where it is; chunks travel with their images under these.
    """

    link: int
    source: int
    target: int
    crosses: bool
    switch: int | None
    resources: tuple[int, ...]
    images: tuple[int, ...]
    moves: tuple[int, ...]
    fixing: tuple[int, ...]


@dataclass(frozen=True)
class Release:
    """Times that a schedule must build on: ``ready_ns``, when a source (chunk, rank) has a chunk, 0 where it is
    missing; ``taken``, per resource, the intervals (start, end) in which it is busy, ascending."""

    ready_ns: Mapping[tuple[int, int], int] = field(default_factory=dict)
    taken: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)


NOTHING_BEFORE = Release()


class SchedulingGraph:
    """Instance made ready for list scheduling.

    Args:
        links: the links that schedules may use; None: all. A union of orbits.
        usable: per chunk the links it may use; None: as the instance says.
        symmetric: keep the instance's symmetries.
        slack: by which part of its remaining distance a chunk that moves may stray from its shortest paths.
        share: above 0, each chunk that moves keeps to one route
            (:func:`loadmaster.planner.collective.routes.balanced_routes`).
        late: a chunk that moves to another node goes from one rank to another of the same NIC only once it is there, so
            that what leaves over a NIC is not strewn over its ranks.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        links: frozenset[int] | None = None,
        usable: Sequence[Sequence[int]] | None = None,
        symmetric: bool = True,
        slack: float = 0.0,
        share: float = 0.0,
        late: bool = False,
    ) -> None:
        topology = instance.topology
        self.instance = instance
        self.topology = topology
        self.rank_count = topology.rank_count
        self.chunk_count = len(instance.chunks)
        self.sizes = [chunk.size_bytes for chunk in instance.chunks]
        self.group: tuple[Symmetry, ...] = closure(
            instance.generators if symmetric else (), self.rank_count, self.chunk_count
        )
        usable = instance.usable_links if usable is None else usable
        kept = frozenset(range(len(topology.links))) if links is None else links
        self.orbits = orbits_of(instance, kept, self.group)
        kept = frozenset(k for orbit in self.orbits for k in orbit.images)
        self._classes(usable, kept)
        self.typical_bytes = typical_bytes(instance)
        self.transfer_ns = [link.transfer_ns(self.typical_bytes) for link in topology.links]
        self.free_action = all(element.ranks[r] != r for element in self.group[1:] for r in range(self.rank_count))
        self._islands(kept)
        self._distances()
        self._masks(slack, share, self._same_nic(kept) if late else frozenset())

    def message_ns(self, link: int, chunks: Sequence[int]) -> tuple[int, int]:
        """Return (occupancy, time to arrival) in ns of a message of some chunks."""
        over = self.topology.links[link]
        occupancy = over.occupancy_ns(sum(self.sizes[c] for c in chunks))
        return occupancy, occupancy + over.latency_ns

    def _classes(self, usable: Sequence[Sequence[int]], kept: frozenset[int]) -> None:
        """Divide chunks into classes: those that may use the same links share distances."""
        known: dict[int, int] = {}
        sets: dict[frozenset[int], int] = {}
        self.class_of: list[int] = []
        for links in usable:
            if id(links) not in known:
                known[id(links)] = sets.setdefault(frozenset(links) & kept, len(sets))
            self.class_of.append(known[id(links)])
        self.class_links: list[frozenset[int]] = list(sets)

    def _islands(self, kept: frozenset[int]) -> None:
        """Find islands, ranks of a node that reach each other within it: a chunk need enter each only once."""
        graph = nx.DiGraph()
        graph.add_nodes_from(range(self.rank_count))
        links = self.topology.links
        graph.add_edges_from((links[k].source, links[k].target) for k in kept if not self.topology.crosses(links[k]))
        self.islands: list[tuple[int, ...]] = sorted(
            tuple(sorted(part)) for part in nx.strongly_connected_components(graph)
        )
        self.island_of = [0] * self.rank_count
        for index, part in enumerate(self.islands):
            for rank in part:
                self.island_of[rank] = index

    def _distances(self) -> None:
        """Compute, per class, the time from rank to rank at the typical size, and to one that may leave its island."""
        self.distance: list[list[list[float]]] = []
        self.to_gateway: list[list[float]] = []
        self.leaving_ns = 0.0
        links = self.topology.links
        for allowed in self.class_links:
            matrix = np.full((self.rank_count, self.rank_count), UNREACHED)
            np.fill_diagonal(matrix, 0.0)
            gateways = set()
            for k in allowed:
                # One nanosecond a hop keeps paths of free links from being circles.
                matrix[links[k].source, links[k].target] = self.transfer_ns[k] + 1.0
                if self.island_of[links[k].source] != self.island_of[links[k].target]:
                    gateways.add(links[k].source)
                    self.leaving_ns = max(self.leaving_ns, float(self.transfer_ns[k]))
            for middle in range(self.rank_count):
                np.minimum(matrix, matrix[:, middle, None] + matrix[None, middle, :], out=matrix)
            self.distance.append(matrix.tolist())
            near = matrix[:, sorted(gateways)].min(axis=1) if gateways else np.full(self.rank_count, UNREACHED)
            self.to_gateway.append(near.tolist())

    def _same_nic(self, kept: frozenset[int]) -> frozenset[int]:
        """Find links between ranks of an island that leave it over a resource that they share."""
        links = self.topology.links
        leaves: list[set[int]] = [set() for _ in range(self.rank_count)]
        for k in kept:
            if self.island_of[links[k].source] != self.island_of[links[k].target]:
                leaves[links[k].source].update(links[k].resources)
        return frozenset(
            k
            for k in kept
            if self.island_of[links[k].source] == self.island_of[links[k].target]
            and any(
                leaves[links[k].source] & set(links[other].resources)
                for other in self.topology.out_links[links[k].target]
                if other in kept and self.island_of[links[other].target] != self.island_of[links[k].target]
            )
        )

    def _masks(self, slack: float, share: float, same_nic: frozenset[int]) -> None:
        """Compute which chunks move or spread, and what each link does for them; those of ``same_nic`` come last."""
        chunks = self.instance.chunks
        self.spreading = 0
        # Chunks that spread, but not to every rank: others may have to pass them on.
        self.partial = 0
        self.wanted = [0] * self.rank_count
        self.start = [0] * self.rank_count
        by_goal: dict[tuple[int, int], int] = {}
        by_class = [0] * len(self.class_links)
        self.goals: list[frozenset[int]] = []
        for index, chunk in enumerate(chunks):
            bit = 1 << index
            # No bytes are everywhere from the start.
            goals = frozenset(chunk.targets) - frozenset(chunk.sources) if chunk.size_bytes else frozenset()
            self.goals.append(goals)
            for rank in goals:
                self.wanted[rank] |= bit
            for rank in chunk.sources:
                self.start[rank] |= bit
            if not goals:
                continue
            if len(chunk.sources) == 1 and len(goals) == 1:
                key = (self.class_of[index], next(iter(goals)))
                by_goal[key] = by_goal.get(key, 0) | bit
            else:
                self.spreading |= bit
                if len(goals) + len(chunk.sources) < self.rank_count:
                    self.partial |= bit
                by_class[self.class_of[index]] |= bit
        reps = {orbit.link for orbit in self.orbits}
        # Per representative link: chunks that spread over it; and (what is left after it, chunks) of those that move.
        self.spreads: dict[int, int] = dict.fromkeys(reps, 0)
        self.forwards: dict[int, list[tuple[float, int]]] = {}
        for k in reps:
            link = self.topology.links[k]
            tails: dict[float, int] = {}
            for index, allowed in enumerate(self.class_links):
                if k in allowed:
                    self.spreads[k] |= by_class[index]
            if share == 0.0:
                for (index, goal), mask in by_goal.items():
                    if k in same_nic and self.island_of[goal] != self.island_of[link.target]:
                        continue
                    left, now = self.distance[index][link.target][goal], self.distance[index][link.source][goal]
                    near = left < now < UNREACHED and self.transfer_ns[k] + 1.0 + left <= now * (1.0 + slack)
                    if k in self.class_links[index] and near:
                        tails[left] = tails.get(left, 0) | mask
            self.forwards[k] = sorted(tails.items(), reverse=True)
        if share > 0.0:
            self._follow_routes(share)
        self.faster = self._faster_into()

    def _follow_routes(self, share: float) -> None:
        """Let each chunk that moves be forwarded only along its route."""
        moving = {
            c: (chunk.size_bytes, chunk.sources[0], next(iter(self.goals[c])), self.class_links[self.class_of[c]])
            for c, chunk in enumerate(self.instance.chunks)
            if self.goals[c] and not self.spreading >> c & 1
        }
        far_ns = {c: self.distance[self.class_of[c]][source][goal] for c, (_, source, goal, _) in moving.items()}
        tails: dict[int, dict[float, int]] = {}
        for c, route in balanced_routes(self.topology, moving, far_ns, self.group, share).items():
            left = 0.0
            for k in reversed(route):
                if k in self.forwards:
                    of = tails.setdefault(k, {})
                    of[left] = of.get(left, 0) | 1 << c
                left += self.transfer_ns[k] + 1.0
        for k, of in tails.items():
            self.forwards[k] = sorted(of.items(), reverse=True)

    def _faster_into(self) -> dict[int, tuple[int, ...]]:
        """Find, per representative link, links into the same rank that are faster."""
        found: dict[int, tuple[int, ...]] = {}
        kept: set[int] = set().union(*self.class_links)
        for orbit in self.orbits:
            own = self.transfer_ns[orbit.link]
            found[orbit.link] = tuple(
                k for k in self.topology.in_links[orbit.target] if k in kept and self.transfer_ns[k] < own
            )
        return found


def typical_bytes(instance: Instance) -> int:
    """Mean size of the chunks that have any bytes, rounded up; 1 where none has."""
    sizes = [chunk.size_bytes for chunk in instance.chunks if chunk.size_bytes]
    return -(-sum(sizes) // len(sizes)) if sizes else 1


def orbits_of(instance: Instance, kept: frozenset[int], group: Sequence[Symmetry]) -> list[Orbit]:
    """Find the orbits of links, without those in which two share a resource: these could never start together."""
    topology = instance.topology
    seen: set[int] = set()
    found: list[Orbit] = []
    for k in sorted(kept):
        if k in seen:
            continue
        link = topology.links[k]
        images = tuple(topology.link_between[g.ranks[link.source], g.ranks[link.target]] for g in group)
        first: dict[int, int] = {}
        for element, image in enumerate(images):
            first.setdefault(image, element)
        seen.update(first)
        held = [resource for image in first for resource in topology.links[image].resources]
        if len(held) != len(set(held)):
            continue
        found.append(
            Orbit(
                k,
                link.source,
                link.target,
                topology.crosses(link),
                link.switch,
                link.resources,
                images,
                tuple(first.values()),
                tuple(element for element, image in enumerate(images) if image == k),
            )
        )
    return found
