"""Urgency of sending a chunk over a link: the scores by which list scheduling takes offers.

A chunk that moves is as urgent as the way it still has to go, this link included. A chunk that spreads is most urgent
where it comes nearer to a rank that may take it out of the island, by the work that waits for it outside; otherwise by
the longest way from here to a rank of the island that nobody serves yet, and among equals by how few ranks of the
island have it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from loadmaster.planner.collective.scheduling_graph import UNREACHED, Orbit, SchedulingGraph, bits

Mode = Literal["tail", "bulk", "rare"]
"""Rule for the offer that a port takes first: ``tail`` the chunk with the longest way still to go; ``bulk`` the message
with the most chunks; ``rare`` the chunk that the fewest ranks around have."""

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Parameters:
    """Parameters of one restart of list scheduling.

    Attributes:
        batch: most chunks of one message between nodes.
        hold: a message between nodes waits until that many chunks are ready, or no more can come.
        local_batch, local_hold: the same within a node.
        taper: a message between nodes carries at most that part of the chunks that may still come; 1: no limit. The
            last messages are then short, and what they bring is spread soon.
        linger: a message waits for chunks that are on their way to its rank and come within that part of what a message
            costs whatever its size.
        noise: share of chance in the order of offers, 0 to 1.
        enter_once: a chunk that goes to every rank enters each island once; otherwise as often as links are free.
        patient: leave a slow link idle where a faster one into the same rank would have the chunk there sooner.
    """

    batch: int = 1
    hold: int = 1
    local_batch: int = 1
    local_hold: int = 1
    taper: float = 1.0
    linger: float = 0.0
    noise: float = 0.0
    mode: Mode = "tail"
    enter_once: bool = True
    patient: bool = True


class Scores:
    """Scores of one run; ``planned`` is the run's own and is read as it changes."""

    def __init__(
        self, graph: SchedulingGraph, parameters: Parameters, chance: random.Random, planned: list[int]
    ) -> None:
        self.graph = graph
        self.parameters = parameters
        self.random = chance
        self.planned = planned
        # Per island, how many ranks have or will have each chunk.
        self.holders = [[0] * graph.chunk_count for _ in graph.islands]
        self.nearest = [[UNREACHED] * graph.chunk_count for _ in graph.islands]
        self.uniform = [self._is_uniform(part) for part in graph.islands]
        self.unit = float(max(graph.transfer_ns, default=1)) or 1.0
        self.wanting = [frozenset(graph.island_of[rank] for rank in goals) for goals in graph.goals]
        self.outside = [len(islands) for islands in self.wanting]
        for rank, mask in enumerate(graph.start):
            self.dispatched(rank, mask & graph.spreading)

    def dispatched(self, rank: int, mask: int) -> None:
        """Take note that chunks that spread are on their way to a rank."""
        graph = self.graph
        island = graph.island_of[rank]
        holders, nearest = self.holders[island], self.nearest[island]
        for chunk in bits(mask):
            if not holders[chunk] and island in self.wanting[chunk]:
                self.outside[chunk] -= 1
            holders[chunk] += 1
            nearest[chunk] = min(nearest[chunk], graph.to_gateway[graph.class_of[chunk]][rank])

    def best(self, orbit: Orbit, mask: int, most: int) -> list[tuple[float, int]]:
        """Pick the most urgent of some chunks, at most ``most``, with their scores."""
        graph = self.graph
        scored: list[tuple[float, int]] = []
        own = float(graph.transfer_ns[orbit.link])
        moving = mask & ~graph.spreading
        if moving:
            room = most
            for left, group in graph.forwards[orbit.link]:
                here = moving & group
                if not here:
                    continue
                chunks = list(bits(here))
                if self.parameters.noise and len(chunks) > room:
                    chunks = self.random.sample(chunks, room)
                scored += [(own + left, c) for c in chunks[:room]]
                room = most - len(scored)
                if room <= 0:
                    break
        spread = mask & graph.spreading
        if spread:
            # With room for all of them, only the most urgent one's score is of use; but that is any of them.
            scored += [(self._spread(orbit, c), c) for c in bits(spread)]
        if self.parameters.noise:
            scale = self.parameters.noise * self.unit
            scored = [(score + scale * self.random.random(), c) for score, c in scored]
        scored.sort(key=lambda item: (-item[0], item[1]))
        return scored[:most]

    def of_message(self, ranked: list[tuple[float, int]]) -> float:
        """Score a message: by its most urgent chunk, or in mode ``bulk`` by how many it carries."""
        if self.parameters.mode == "bulk":
            return len(ranked) * self.unit * 1e3 + ranked[0][0]
        return ranked[0][0]

    def _spread(self, orbit: Orbit, chunk: int) -> float:
        graph = self.graph
        island = graph.island_of[orbit.target]
        outside = self.outside[chunk]
        rarity = 1.0 / (1.0 + self.holders[island][chunk])
        if orbit.crosses:
            return graph.leaving_ns * (1 + outside) + self._tail(orbit.target, island, chunk) + rarity
        score = rarity * self.unit if self.parameters.mode == "rare" else rarity
        if outside:
            near = graph.to_gateway[graph.class_of[chunk]][orbit.target]
            if near < self.nearest[island][chunk]:
                score += (1 + outside) * graph.leaving_ns * 4.0 + near
        return score + self._tail(orbit.target, island, chunk)

    def _tail(self, rank: int, island: int, chunk: int) -> float:
        """Longest way from a rank to one of its island that nobody serves yet; 0 where all ways are equal."""
        graph = self.graph
        part = graph.islands[island]
        if self.uniform[island]:
            return 0.0
        distance = graph.distance[graph.class_of[chunk]][rank]
        planned = self.planned
        return max((distance[r] for r in part if not planned[r] >> chunk & 1), default=0.0)

    def _is_uniform(self, part: tuple[int, ...]) -> bool:
        """Return whether all ranks of an island are equally far from each other, whatever the chunk."""
        return all(len({m[a][b] for a in part for b in part if a != b}) <= 1 for m in self.graph.distance)
