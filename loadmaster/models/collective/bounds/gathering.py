"""Bounds of an instance by the growth engine: how soon ranks can know, hand on, add up.

- **Knowledge.** A target v needs a set D of chunks: all that it wants, or those that start outside its node. Other
  chunks are forgotten, which only helps. time >= tau[v, |D|]; of targets that share an entry one has the worst of it
  (sharing.py), ranks of a node learn from one another, one at a time (totals.py), and what enters a node goes on
  through the ports of its ranks (releasing.py), and from its only entry to the others (only_entry.py).
- **Delivery** (backwards). A rank u starts with the only copy of, or has a part of, chunks D that must end on one other
  rank each. time >= tau[u, |D|], units being chunks that get to their targets.
- **Few messages.** An AllToAll's into a node are each gathered before and handed out after (few_messages.py).
- **Spread** (backwards, flat). One chunk must get from a source to all its targets, and to those outside its node:
  units are targets. None is nearer than its distance.
- **Sum** (forwards, flat). A rank where a sum is to be whole must hear of all its parts, and of those outside its node:
  units are sources. None is nearer than its distance. Of sums with several targets: meeting.py.
- **Pipelined broadcast.** k chunks of b bytes start on one rank whose links all hold one resource. The one that is sent
  first last is in a message that starts once the others have left, (k - j) b / gbps at least where it has j chunks
  itself, which lengthens it by (j - 1) b / gbps; so time >= (k - 1) b / gbps + spread of one chunk. Sums to one rank:
  the same from the end. All ports of a switch together say a little more (pipelining.py). Of divisible chunks b is one
  byte. Nobody relays what has not come yet (relaying.py).

For collectives between few and small messages this is the information-doubling bound: on a port that takes a message
at a time, what a rank knows at most doubles with every message. For large ones it is the release of chunks by NICs into
nodes, and from there through one port. All in one, with the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from loadmaster.models.collective.bounds.few_messages import few_messages_ns
from loadmaster.models.collective.bounds.growth import Growth, Units, open_links
from loadmaster.models.collective.bounds.meeting import spread_ns
from loadmaster.models.collective.bounds.network import BoolArray, Network
from loadmaster.models.collective.bounds.only_entry import only_entry_ns
from loadmaster.models.collective.bounds.pipelining import pipelining_ns
from loadmaster.models.collective.bounds.relaying import relaying_ns
from loadmaster.models.collective.bounds.releasing import releasing_ns
from loadmaster.models.collective.bounds.sharing import sharing_ns
from loadmaster.models.collective.bounds.totals import totals_ns

# The engine's time grows with the square of the units; more chunks than this at one rank are bounded by cuts alone.
LARGEST_COUNT = 1024


def gathering_bounds(
    network: Network, *, mirrored: bool = False, over: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, str]]:
    """Yield all bounds of this module, at typical ranks and chunks.

    Args:
        mirrored: seen from the end, where delivery and few messages say nothing that was not said forwards.
        over: asked by what takes long, which then ends with what it has proved.
    """
    copies = ~network.reduces
    alone = (network.targets.sum(axis=1) == 1) & (network.reduces | (network.sources.sum(axis=1) == 1))
    done: set[bytes] = set()
    for rank in network.typical_ranks:
        node = network.node_of == network.node_of[rank]
        wanted = copies & network.targets[:, rank]
        for chunks in (wanted, wanted & ~network.sources[:, node].any(axis=1)):
            if chunks.tobytes() not in done:
                done.add(chunks.tobytes())
                yield from knowledge_bounds(network, chunks)
        if mirrored:
            continue
        held = alone & network.sources[:, rank] & ~network.targets[:, rank]
        for chunks in (held, held & ~network.targets[:, node].any(axis=1)):
            yield delivery_ns(network, chunks), "delivery by a rank"
    if network.topology.node_count > 1 and not mirrored:
        for home in network.typical_nodes:
            yield few_messages_ns(network, home), "few messages into a node"
    for chunk in _typical_chunks(network):
        yield from _one_chunk(network, chunk, over)


def knowledge_bounds(network: Network, chunks: BoolArray) -> Iterator[tuple[int, str]]:
    """Yield bounds on the time when every rank that wants all of some copied chunks has them.

    Args:
        chunks: [chunks] the set D.
    """
    if not 0 < np.count_nonzero(chunks) <= LARGEST_COUNT:
        return
    units = _units(network, chunks, network.sources[chunks], backwards=False)
    growth = Growth(network, units)
    wanting = np.asarray(network.targets[chunks].all(axis=0))
    alone_ns = max((growth.time_ns(int(v), units.count) for v in np.flatnonzero(wanting)), default=0)
    yield alone_ns, "growth of what ranks know"
    yield sharing_ns(network, growth, units, wanting), "ranks that share an entry"
    yield totals_ns(network, growth, units, wanting), "growth of what a node knows"
    yield releasing_ns(network, growth, units, chunks, wanting), "release into a node"
    yield only_entry_ns(network, growth, units, chunks, wanting), "last chunk over an only entry"


def delivery_ns(network: Network, chunks: BoolArray) -> int:
    """Earliest time at which a rank that has all of some chunks of one target each may be rid of them."""
    if not 0 < np.count_nonzero(chunks) <= LARGEST_COUNT:
        return 0
    units = _units(network, chunks, network.targets[chunks], backwards=True)
    growth = Growth(network, units)
    having = np.flatnonzero(network.sources[chunks].all(axis=0))
    return max((growth.time_ns(int(u), units.count) for u in having), default=0)


def _one_chunk(network: Network, chunk: int, over: Callable[[], bool]) -> Iterator[tuple[int, str]]:
    """Spread of one chunk, with those of its kind that start and end where it does."""
    topology, sources, targets = network.topology, network.sources[chunk], network.targets[chunk]
    together = (network.kind_of == network.kind_of[chunk]) & (network.reduces == network.reduces[chunk])
    together &= (network.sources == sources).all(axis=1) & (network.targets == targets).all(axis=1)
    one_bytes = network.least_bytes(int(network.size_bytes[chunk]))
    rest_bytes = int(network.size_bytes[together].sum()) - one_bytes
    if sources.sum() == 1 and targets.sum() > 1 and not network.reduces[chunk]:
        root = int(np.argmax(sources))
        found_ns = _sends_ns(network, topology.out_links[root], rest_bytes) + spread_ns(network, chunk)
        yield found_ns, "pipelined broadcast"
        yield relaying_ns(network, root, together), "broadcast by relays"
        if rest_bytes and not network.divisible and not np.any(~targets & ~sources):
            ports_ns = pipelining_ns(network, root, one_bytes, int(together.sum()), found_ns, over)
            yield ports_ns, "pipelined broadcast on all ports"


def _sends_ns(network: Network, links: tuple[int, ...], rest_bytes: int) -> int:
    """Time of some bytes that leave, or arrive at, one rank over links that all hold one resource; otherwise 0."""
    used = set(network.used_links)
    machines = network.cover(k for k in links if k in used)
    return math.floor(rest_bytes / machines[0].gbps) if len(machines) == 1 else 0


def _units(network: Network, chunks: BoolArray, held: BoolArray, *, backwards: bool) -> Units:
    """The units of some chunks, of which ``held`` [chunks, ranks] are there at first."""
    unit_bytes, message_bytes = network.units_of(chunks)
    first, limit = held.sum(axis=0).astype(np.int64), open_links(network, chunks)
    if network.divisible:
        sizes = network.size_bytes[chunks]
        kinds = np.bincount(network.kind_of[chunks], weights=sizes, minlength=len(network.first_of_kind))
        first = -(-(held * sizes[:, None]).sum(axis=0) // unit_bytes)
        limit = -(-(network.usable * kinds[:, None]).sum(axis=0).astype(np.int64) // unit_bytes)
    count = len(message_bytes)
    return Units(
        np.minimum(first, count),
        count,
        message_bytes,
        unit_bytes,
        network.divisible,
        np.minimum(limit, count),
        backwards,
    )


def _typical_chunks(network: Network) -> list[int]:
    """The first chunk of those that start and end at ranks of the same colours and are of one size."""
    first: dict[tuple[object, ...], int] = {}
    for index, chunk in enumerate(network.instance.chunks):
        look = tuple(
            tuple(np.bincount(network.alike[list(ranks)]).tolist()) for ranks in (chunk.sources, chunk.targets)
        )
        first.setdefault((chunk.size_bytes, chunk.reduces, *look), index)
    return list(first.values())
