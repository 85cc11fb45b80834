"""Subsets of links that a schedule may use: all of them, or those that make chunks travel together.

Where each message costs time whatever its size, few long steps beat many short ones. On ranks that all reach each other
a subset keeps only links whose offset, counted around the ranks, is a power of the radix times a digit: chunks that
are spread or moved over it and merged take about log n steps instead of n - 1 (the dissemination of [Bruck97];
recursive doubling on a power of two). The same is done with whole nodes. It is also what uc-min asks of a switch: few
links in use. Where many links between nodes share a NIC, keeping few of them has the same use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.collective.instance import Instance, Symmetry
from loadmaster.models.topologies.topology import Link

Lanes = Literal["all", "rails", "one"]


@dataclass(frozen=True, order=True)
class LinkSubset:
    """Rule by which a subset keeps links.

    Attributes:
        local, nodes: radix of the offsets within a node and between nodes; 0 keeps all links, 1 those to the next.
        lanes: of the links between two nodes, ``rails``: those between ranks of the same place in their nodes; ``one``:
            the first of those that hold the same resources.
    """

    local: int = 0
    nodes: int = 0
    lanes: Lanes = "all"


FULL = LinkSubset()


def links_of(instance: Instance, subset: LinkSubset, group: Sequence[Symmetry]) -> frozenset[int]:
    """Select the links of a subset: whole orbits of those it keeps."""
    topology = instance.topology
    if subset == FULL:
        return frozenset(range(len(topology.links)))
    nodes = topology.ranks_of_node
    place = {node: index for index, node in enumerate(nodes)}
    inside = {rank: index for ranks in nodes.values() for index, rank in enumerate(ranks)}

    first: dict[tuple[int, int, tuple[int, ...]], Link] = {}
    for link in topology.links:
        first.setdefault((topology.node_of[link.source], topology.node_of[link.target], link.resources), link)

    def keeps(link: Link) -> bool:
        if topology.crosses(link):
            ends = (topology.node_of[link.source], topology.node_of[link.target])
            if subset.lanes == "rails" and inside[link.source] != inside[link.target]:
                return False
            if subset.lanes == "one" and first[*ends, link.resources] is not link:
                return False
            away = place[topology.node_of[link.target]] - place[topology.node_of[link.source]]
            return _kept(away, len(nodes), subset.nodes)
        around = topology.switches[link.switch] if link.switch is not None else nodes[topology.node_of[link.source]]
        if link.switch is None and not _is_complete(instance, around):
            return True
        return _kept(inside[link.target] - inside[link.source], len(around), subset.local)

    kept = [link for link in topology.links if keeps(link)]
    return frozenset(topology.link_between[g.ranks[k.source], g.ranks[k.target]] for k in kept for g in group)


def offsets(count: int, radix: int) -> frozenset[int]:
    """Offsets around so many places: digit * radix ** power, below the count."""
    if radix == 0:
        return frozenset(range(1, count))
    if radix == 1:
        return frozenset({1})
    found: set[int] = set()
    step = 1
    while step < count:
        found.update(digit * step for digit in range(1, radix) if digit * step < count)
        step *= radix
    return frozenset(found)


def _kept(away: int, count: int, radix: int) -> bool:
    return away % count in offsets(count, radix)


def _is_complete(instance: Instance, ranks: Sequence[int]) -> bool:
    between = instance.topology.link_between
    return all((a, b) in between for a in ranks for b in ranks if a != b)
