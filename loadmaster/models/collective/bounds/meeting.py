"""A sum with several targets becomes whole at one rank: parts travel before, copies after.

Parts are sent on once and never grow afterwards, so each goes one way, and all ways end on the one rank w where the sum
is first whole, at t. A message with a part of it has arrived by t, or that part would be missing there; one with the
whole of it starts at t or later. Let in(w) be the least time to w from all sources, and out(w) that from w to all
targets, by the growth engine (flat) and by distance, of all and of those outside the node of w alone. So

(1) time >= in(w) + out(w) at the best w;
(2) parts have arrived by time - out, the least out(w), and copies start at in, the least in(w), or later. What follows
    from there being two phases is said in counting.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from loadmaster.models.collective.bounds.growth import flat_growth
from loadmaster.models.collective.bounds.network import BoolArray, IntArray, Network

# Every node is looked at; of more nodes than this, none is singled out.
_MEETING_NODES = 32
# Of sums of more kinds than this the first are looked at.
_MOST_KINDS = 8


@dataclass(frozen=True)
class Meeting:
    """Sums of one size, sources and targets, ``count`` of them: in(w), out(w) [ranks]; ``home``: in w's node alone."""

    count: int
    in_ns: IntArray
    out_ns: IntArray
    home_in_ns: IntArray
    home_out_ns: IntArray


def meetings(network: Network) -> Sequence[Meeting]:
    """One meeting for each kind of sums with several targets; of many kinds, for the first of them."""
    kinds: dict[object, list[int]] = {}
    for index, chunk in enumerate(network.instance.chunks):
        if chunk.goes_on:
            kinds.setdefault((chunk.size_bytes, chunk.senders, chunk.sources, chunk.targets), []).append(index)
    return [_meeting(network, chunks) for chunks in islice(kinds.values(), _MOST_KINDS)]


def meeting_bounds(found: Sequence[Meeting]) -> Iterator[tuple[int, str]]:
    """Yield bound (1) of each meeting."""
    for meeting in found:
        yield int((meeting.in_ns + meeting.out_ns).min()), "sum at one rank, then spread"


def spread_ns(network: Network, chunk: int) -> int:
    """Least time from the source of a chunk to all its targets, and to those outside the source's node."""
    root, targets = int(np.argmax(network.sources[chunk])), network.targets[chunk]
    away = targets & ~_beside(network, root)
    return max(int(_least_ns(network, chunk, members, backwards=True)[root]) for members in (targets, away))


def _meeting(network: Network, chunks: Sequence[int]) -> Meeting:
    chunk = chunks[0]
    sources, targets = network.sources[chunk], network.targets[chunk]
    came, goes = (partial(_least_ns, network, chunk, backwards=backwards) for backwards in (False, True))
    there, on = came(sources), goes(targets)
    home_in, home_on = np.zeros_like(there), np.zeros_like(on)
    nodes = network.topology.ranks_of_node
    for ranks in map(list, nodes.values()) if 1 < len(nodes) <= _MEETING_NODES else ():
        home = _beside(network, ranks[0])
        home_in[ranks] = came(sources & home)[ranks]
        home_on[ranks] = goes(targets & home)[ranks]
        there[ranks] = np.max([there[ranks], home_in[ranks], came(sources & ~home)[ranks]], axis=0)
        on[ranks] = np.max([on[ranks], home_on[ranks], goes(targets & ~home)[ranks]], axis=0)
    return Meeting(len(chunks), there, on, home_in, home_on)


def _beside(network: Network, rank: int) -> BoolArray:
    """Mask of the ranks in the node of a rank, [ranks]."""
    return np.asarray(network.node_of == network.node_of[rank])


def _least_ns(network: Network, chunk: int, members: BoolArray, *, backwards: bool) -> IntArray:
    """Least time, [ranks], to each rank from all ``members``, by growth and distance; backwards: from it to them."""
    kind, size_bytes = network.kind_of[chunk], network.least_bytes(int(network.size_bytes[chunk]))
    growth = flat_growth(network, members, size_bytes, network.usable[kind], backwards=backwards)
    found = [growth.time_ns(r, int(members.sum())) for r in range(network.rank_count)]
    ways_ns = network.distance_ns[kind][:, members].T if backwards else network.distance_ns[kind][members]
    return np.asarray(np.maximum(found, ways_ns.max(axis=0, initial=0)))
