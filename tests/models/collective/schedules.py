"""Schedules for tests, by rules plain enough to be right by inspection: rings, and random ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send


class Booking:
    """Sends one after another, each as early as its link and its chunks allow."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.free_ns = [0] * len(instance.topology.resources)
        self.sends: list[Send] = []

    def send(self, source: int, target: int, chunks: Sequence[int], ready_ns: int, *, combines: bool = False) -> int:
        """Book one; returns when it arrives."""
        topology = self.instance.topology
        link = topology.links[topology.link_between[source, target]]
        size_bytes = sum(self.instance.chunks[c].size_bytes for c in chunks)
        start_ns = max([ready_ns, *(self.free_ns[r] for r in link.resources)])
        for resource in link.resources:
            self.free_ns[resource] = start_ns + link.occupancy_ns(size_bytes)
        self.sends.append(Send(start_ns, source, target, tuple(sorted(chunks)), combines))
        return start_ns + link.transfer_ns(size_bytes)

    def schedule(self) -> tuple[Send, ...]:
        """All that was booked, in the order of plans."""
        return tuple(sorted(self.sends, key=lambda s: (s.start_ns, s.source, s.target)))


def expect_symmetric(instance: Instance, sends: Sequence[Send]) -> None:
    """Every generator of the instance maps the schedule onto itself."""
    for symmetry in instance.generators:
        images = {
            (
                s.start_ns,
                symmetry.ranks[s.source],
                symmetry.ranks[s.target],
                frozenset(symmetry.chunks[c] for c in s.chunks),
            )
            for s in sends
        }
        assert images == {(s.start_ns, s.source, s.target, frozenset(s.chunks)) for s in sends}


def ring_allgather(instance: Instance) -> tuple[Send, ...]:
    """Every rank passes on what it got last to its right neighbour; one chunk per rank, ranks in a ring."""
    booking, count = Booking(instance), instance.topology.rank_count
    ready = dict.fromkeys(range(count), 0)
    for step in range(count - 1):
        arrived = {}
        for rank in range(count):
            chunk = (rank - step) % count
            arrived[(rank + 1) % count] = booking.send(rank, (rank + 1) % count, [chunk], ready[rank])
        ready = arrived
    return booking.schedule()


def random_schedule(instance: Instance, seed: int) -> tuple[Send, ...]:
    """Chunks in random order, each along a random tree from where it is to where it must be. Nothing is merged.

    A chunk that reduces goes up a random tree to a random rank, then down to its targets. For topologies where every
    rank reaches every other over links that the chunk may use.
    """
    chance, booking = random.Random(seed), Booking(instance)
    order = list(range(len(instance.chunks)))
    chance.shuffle(order)
    for c in order:
        chunk = instance.chunks[c]
        if not chunk.size_bytes:
            continue
        root = chance.randrange(instance.topology.rank_count) if chunk.reduces else chunk.sources[0]
        ready = {rank: 0 for rank in chunk.sources if not chunk.reduces}
        if chunk.reduces:
            ready[root] = _up(booking, chance, c, root)
        towards = _tree(instance, chance, c, root, down=True)
        for target in chunk.targets:
            way = [target]
            while way[-1] not in ready:
                way.append(towards[way[-1]])
            for source, rank in zip(way[:0:-1], way[-2::-1], strict=True):
                ready[rank] = booking.send(source, rank, [c], ready[source])
    return booking.schedule()


def _up(booking: Booking, chance: random.Random, c: int, root: int) -> int:
    """Add all parts up to the root; returns when the sum is there."""
    towards = _tree(booking.instance, chance, c, root, down=False)
    sources = set(booking.instance.chunks[c].sources)

    def complete(rank: int) -> int | None:
        below = [(child, complete(child)) for child, parent in towards.items() if parent == rank]
        arrivals = [
            booking.send(child, rank, [c], ready_ns, combines=True) for child, ready_ns in below if ready_ns is not None
        ]
        return max([0, *arrivals]) if arrivals or rank in sources else None

    whole_ns = complete(root)
    assert whole_ns is not None
    return whole_ns


def _tree(instance: Instance, chance: random.Random, c: int, root: int, *, down: bool) -> dict[int, int]:
    """rank -> its parent in a random tree of links that lead from the root (down), or to it."""
    links = [k for k in instance.topology.links if instance.may_send(c, k)]
    ends = [(k.source, k.target) if down else (k.target, k.source) for k in links]
    parents: dict[int, int] = {}
    reached = {root}
    while fresh := [(a, b) for a, b in ends if a in reached and b not in reached]:
        parent, child = chance.choice(fresh)
        parents[child] = parent
        reached.add(child)
    return parents
