"""Grids of ranks, which classic algorithms go through one dimension after another.

Every topology is a grid of one dimension, all ranks in a row. Nodes of equally many ranks make two: ranks of a node,
nodes. A torus has those along which every rank has a link to the next and to the one before, and no other links.

Trees along one dimension of a grid, from one of its ranks to all others.

- *chain*: to the next, and so on; *chains*: every other turn the other way round;
- *both ways*: to the next and to the one before, half of the way each;
- *binomial*: what recursive doubling does with one chunk; places other than the root's move on from turn to turn;
- *binary*: the root to one, from there one to two; every other turn the other way round, where the inner places are
  leaves (double binary trees: [Sanders09]);
- *disjoint*: the binomial tree over the bits of places from turn on, whose last edges are those of its first bit
  (edge-disjoint spanning binomial trees: [Johnsson89]). With a turn after every step, each rank sends once and receives
  once in all steps. Of dimensions whose size is a power of two;
- *direct*: to all; *relayed*: to one, another in every turn, and from there to all others (scatter and all-gather:
  [Geijn94]).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.topologies.topology import Topology


@dataclass(frozen=True)
class Dimension:
    """Ranks that differ in ``rank // stride % size`` alone."""

    size: int
    stride: int

    def at(self, rank: int) -> int:
        return rank // self.stride % self.size

    def moved(self, rank: int, to: int) -> int:
        """Return the rank at another place of this dimension."""
        return rank + (to - self.at(rank)) * self.stride


def flat(topology: Topology) -> Dimension:
    """Return all ranks in a row."""
    return Dimension(topology.rank_count, 1)


def node_grid(topology: Topology) -> tuple[Dimension, Dimension] | None:
    """Ranks of a node, and nodes; None where nodes are not ranges of equally many ranks, or there is one of either."""
    per_node = topology.rank_count // topology.node_count
    even = all(topology.node_of[r] == topology.node_of[r // per_node * per_node] for r in range(topology.rank_count))
    if not even or per_node == 1 or topology.node_count == 1 or topology.rank_count % per_node:
        return None
    return Dimension(per_node, 1), Dimension(topology.node_count, per_node)


def torus_grids(topology: Topology) -> Iterator[tuple[Dimension, ...]]:
    """Grids of two dimensions or more whose neighbours are those that have a link."""
    for grid in _grids_from(topology, 1):
        if sum(min(2, dimension.size - 1) for dimension in grid) * topology.rank_count == len(topology.links):
            yield grid


def _grids_from(topology: Topology, stride: int) -> Iterator[tuple[Dimension, ...]]:
    left = topology.rank_count // stride
    for size in range(2, left + 1):
        dimension = Dimension(size, stride)
        if left % size or (size == left and stride == 1) or not _is_ring(topology, dimension):
            continue
        if size == left:
            yield (dimension,)
        else:
            yield from ((dimension, *rest) for rest in _grids_from(topology, stride * size))


def _is_ring(topology: Topology, dimension: Dimension) -> bool:
    between = topology.link_between
    return all(
        (rank, dimension.moved(rank, (dimension.at(rank) + 1) % dimension.size)) in between
        for rank in range(topology.rank_count)
    )


Shape = Literal["chain", "chains", "both ways", "binomial", "binary", "disjoint", "direct", "relayed"]
# (from, to), each after the one into where it starts.
Edges = tuple[tuple[int, int], ...]


def shapes_of(dimension: Dimension, shapes: Sequence[Shape]) -> Iterator[Shape]:
    """Select the shapes that a dimension can have, in their order."""
    size = dimension.size
    yield from (shape for shape in shapes if shape != "disjoint" or size & (size - 1) == 0)


def tree(dimension: Dimension, shape: Shape, root: int, turn: int) -> Edges:
    """Build the tree of a dimension from a rank. ``turn``: trees of one root differ from turn to turn."""
    size, here = dimension.size, dimension.at(root)
    forward = turn % 2 == 0 or shape == "chain"

    def rank(step: int) -> int:
        """Return the rank so many steps from the root, in the turn's direction."""
        return dimension.moved(root, (here + (step if forward else -step)) % size)

    match shape:
        case "chain" | "chains":
            return tuple((rank(i), rank(i + 1)) for i in range(size - 1))
        case "both ways":
            far = size // 2
            ahead = [(rank(i), rank(i + 1)) for i in range(far)]
            return (*ahead, *((rank(-i), rank(-i - 1)) for i in range(size - 1 - far)))
        case "binomial":
            others = [dimension.moved(root, (here + 1 + (i + turn) % (size - 1)) % size) for i in range(size - 1)]
            places = [root, *others]
            return tuple((places[i ^ (1 << i.bit_length() - 1)], places[i]) for i in range(1, size))
        case "binary":
            return tuple((rank(i // 2), rank(i)) for i in range(1, size))
        case "disjoint":
            return tuple(
                (dimension.moved(root, here ^ a), dimension.moved(root, here ^ b)) for a, b in _disjoint(size, turn)
            )
        case "direct":
            return tuple((root, rank(i)) for i in range(1, size))
        case "relayed":
            relay = dimension.moved(root, (here + 1 + turn % (size - 1)) % size)
            others = [dimension.moved(root, (dimension.at(relay) + i) % size) for i in range(1, size)]
            return ((root, relay), *((relay, other) for other in others if other != root))


def _disjoint(size: int, turn: int) -> Edges:
    """Build one of the edge-disjoint trees between places of a hypercube, the root's place being 0."""
    bits = (size - 1).bit_length()
    order = [1 << (turn + i) % bits for i in range(bits)]
    found, holders = [(0, order[0])], [order[0]]
    for bit in order[1:]:
        found += [(a, a ^ bit) for a in holders]
        holders += [a ^ bit for a in holders]
    return (*found, *((a, a ^ order[0]) for a in holders if a != order[0]))
