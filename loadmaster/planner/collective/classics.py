"""The classic algorithms: rings, recursive doubling and halving, dissemination, binomial trees, direct exchange.

Ranks are the points of a grid of one dimension (all ranks), or of two (ranks of a node, nodes). An algorithm goes
through the dimensions one after another; in each it takes steps, in which every rank sends to the ranks at some
distance from it along that dimension:

- *doubling*: distances 1, 2, 4 .. : by exclusive or where the dimension is a power of two (recursive doubling),
  otherwise around (Bruck et al., 1997); *halving*: the same distances, the longest first;
- *ring*: always the next; *both ways*: the next and the one before;
- *direct*: every distance once, only what the rank had at first.

In a step a rank sends a chunk that spreads to whom lacks it, and a chunk with one target where that is on its way; all
that goes from one rank to another is one message. So AllGather is what these names say, AllToAll Bruck's algorithm or a
pairwise exchange, Broadcast a binomial tree or a chain, Scatter and Gather binomial trees; what brings a chunk to where
nobody needs it is pruned. Sums are the same, reversed: AllReduce is a ReduceScatter by halving, then an AllGather by
doubling; recursive doubling of an AllReduce is of form ``gather``. Ranks without a link between them send over the
shortest way, whose ranks keep what passes.

Each is right for any number of ranks, and timed as its order allows (:func:`prune.retime`). Here all chunks of a step
travel together; :mod:`loadmaster.planner.collective.trees` has those whose chunks follow one another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import pairwise, product
from typing import Literal

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Topology
from loadmaster.planner.collective.grids import Dimension, flat, node_grid
from loadmaster.planner.collective.prune import prune, retime
from loadmaster.planner.collective.reversal import choose_roots, gathering, joined, reverse, reversed_summing
from loadmaster.planner.collective.routes import ShortestWays

Scheme = Literal["doubling", "halving", "ring", "both ways", "direct"]
SCHEMES: tuple[Scheme, ...] = ("doubling", "halving", "ring", "both ways", "direct")
# Of more chunks times targets than this, following every one costs more than list scheduling does.
MOST_TARGETS = 1 << 14


@dataclass(frozen=True)
class Classic:
    """An algorithm by name: a scheme for each dimension, in order."""

    name: str
    phases: tuple[tuple[Dimension, Scheme], ...]


def classics(topology: Topology) -> Iterator[Classic]:
    """Yield the classic algorithms of a topology, the plainest first."""
    row = flat(topology)
    yield from (Classic(scheme, ((row, scheme),)) for scheme in SCHEMES)
    grid = node_grid(topology)
    if grid is None:
        return
    inside, between = grid
    alike: tuple[Scheme, ...] = ("doubling", "ring", "direct")
    for near, far in product(alike, repeat=2):
        yield Classic(f"{far} between nodes, then {near}", ((between, far), (inside, near)))
        yield Classic(f"{near} within nodes, then {far}", ((inside, near), (between, far)))


def schedule(instance: Instance, classic: Classic) -> tuple[Send, ...] | None:
    """Schedule an instance by a classic algorithm; None where a rank cannot reach another that it sends to."""
    if not instance.combines:
        return _copies(instance, classic, instance.usable_links)
    instance, roots = choose_roots(instance.without_symmetry())
    spreading, after = reversed_summing(instance, roots), gathering(instance, roots)
    sums = _copies(spreading, classic, instance.usable_links)
    copies = _copies(after, classic, after.usable_links)
    return None if sums is None or copies is None else joined(instance, reverse(instance, spreading, sums), copies)


def _copies(instance: Instance, classic: Classic, usable: Sequence[Sequence[int]]) -> tuple[Send, ...] | None:
    """Schedule an instance without sums over the ``usable`` links of each chunk; None where a rank cannot reach another
    that it sends to."""
    steps = _Steps(instance, usable)
    for dimension, scheme in classic.phases:
        if not steps.take(dimension, scheme):
            return None
    return retime(instance, prune(instance, steps.sends))


class _Steps:
    """State between steps: who has which chunk. ``sends`` are in order, their starts far enough apart for all."""

    def __init__(self, instance: Instance, usable: Sequence[Sequence[int]]) -> None:
        self.sends: list[Send] = []
        self.held: list[set[int]] = [set() for _ in range(instance.topology.rank_count)]
        self.only: dict[int, int] = {}
        for c, chunk in enumerate(instance.chunks):
            if not chunk.size_bytes:
                continue
            for rank in chunk.sources:
                self.held[rank].add(c)
            if len(chunk.targets) == 1:
                self.only[c] = chunk.targets[0]
        total = sum(chunk.size_bytes for chunk in instance.chunks)
        self._apart_ns = max((k.transfer_ns(total) for k in instance.topology.links), default=0) + 1
        self._turns = numbers()
        self._ways = ShortestWays(instance, usable)

    def take(self, dimension: Dimension, scheme: Scheme) -> bool:
        at_first = [set(held) for held in self.held]
        for distances in _distances(dimension.size, scheme):
            before = [set(held) for held in (at_first if scheme == "direct" else self.held)]
            for distance in distances:
                for rank in range(len(self.held)):
                    here = dimension.at(rank)
                    exchange = scheme in ("doubling", "halving") and dimension.size & (dimension.size - 1) == 0
                    there = here ^ distance if exchange else (here + distance) % dimension.size
                    goes = [
                        c
                        for c in before[rank]
                        if c in self.held[rank] and self._goes(c, dimension, scheme, here, distance, exchange)
                    ]
                    if not self._send(rank, dimension.moved(rank, there), goes):
                        return False
        return True

    def _goes(self, c: int, dimension: Dimension, scheme: Scheme, here: int, distance: int, exchange: bool) -> bool:
        """Return whether a chunk takes a step of the given distance; chunks of several targets always do."""
        if c not in self.only:
            return True
        target = dimension.at(self.only[c])
        left = here ^ target if exchange else (target - here) % dimension.size
        match scheme:
            case "doubling" | "halving":
                return bool(left & distance)
            case "direct":
                return left == distance
            case "ring":
                return left > 0
            case "both ways":
                return left > 0 and (2 * left <= dimension.size) == (distance > 0)

    def _send(self, rank: int, to: int, chunks: Sequence[int]) -> bool:
        """Send the chunks that another rank lacks, by the shortest way they may take; False where one has no way."""
        together: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for c in sorted(chunks):
            if c not in self.held[to]:
                way = self._ways.way(c, rank, to)
                if not way:
                    return False
                together[way].append(c)
        for way, carried in together.items():
            for source, target in pairwise(way):
                fresh = tuple(c for c in carried if c not in self.held[target])
                if fresh:
                    self.sends.append(Send(next(self._turns) * self._apart_ns, source, target, fresh))
                    self.held[target].update(fresh)
                for c in carried:
                    # What moves is where it was sent last.
                    if c in self.only:
                        self.held[source].discard(c)
        return True


def _distances(size: int, scheme: Scheme) -> list[tuple[int, ...]]:
    powers = [1 << i for i in range((size - 1).bit_length())]
    match scheme:
        case "doubling":
            return [(power,) for power in powers]
        case "halving":
            return [(power,) for power in reversed(powers)]
        case "ring":
            return [(1,)] * (size - 1)
        case "both ways":
            return [(1, -1)] * (size // 2)
        case "direct":
            return [(distance,) for distance in range(1, size)]
