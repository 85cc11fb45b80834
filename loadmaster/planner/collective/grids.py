"""Grids of ranks, which classic algorithms go through one dimension after another.

Every topology is a grid of one dimension, all ranks in a row. Nodes of equally many ranks make two: ranks of a node,
nodes. A torus has those along which every rank has a link to the next and to the one before, and no other links.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
