"""Bounds of an instance by the growth engine: how soon ranks can know, hand on, add up.

- **Knowledge.** A target v needs a set D of chunks: all that it wants, or those that start outside its node. Other
  chunks are forgotten, which only helps. time >= tau[v, |D|]; of targets that share an entry one has the worst of it,
  ranks of a node learn from one another, one at a time (both: knowledge.py), and what enters a node goes on through the
  ports of its ranks, and from its only entry to the others (both: node_entries.py).
- **Delivery** (backwards). A rank u starts with the only copy of, or has a part of, chunks D that must end on one other
  rank each. time >= tau[u, |D|], units being chunks that get to their targets.
- **Few messages.** An AllToAll's into a node are each gathered before and handed out after (below).
- **Spread** (backwards, flat). One chunk must get from a source to all its targets, and to those outside its node:
  units are targets. None is nearer than its distance.
- **Sum** (forwards, flat). A rank where a sum is to be whole must hear of all its parts, and of those outside its node:
  units are sources. None is nearer than its distance. Of sums with several targets: meeting.py.
- **Pipelined broadcast.** k chunks of b bytes start on one rank whose links all hold one resource. The one that is sent
  first last is in a message that starts once the others have left, (k - j) b / gbps at least where it has j chunks
  itself, which lengthens it by (j - 1) b / gbps; so time >= (k - 1) b / gbps + spread of one chunk. Sums to one rank:
  the same from the end. All ports of a switch together say a little more, and nobody relays what has not come yet
  (both: broadcasts.py). Of divisible chunks b is one byte.

For collectives between few and small messages this is the information-doubling bound: on a port that takes a message
at a time, what a rank knows at most doubles with every message. For large ones it is the release of chunks by NICs into
nodes, and from there through one port. All in one, with the bytes.

Bounds of D in other modules are given the growth of D, forwards, its units, and a mask of the ranks that need all of D.

**Few messages** over an entry of a node are large ones, gathered before and handed out after.

Let D be copied chunks of one source, outside node U, and one target, in U: an AllToAll. Of each choose a way to its
target, and count it at the machine p of the link over which this enters U for the last time. Let n chunks be counted at
p, in M messages, each chunk in the one that its way goes by; p carries these messages one after another, M message_ns
and the bytes of n chunks at least (occupancy_M), and ends them a latency before they arrive. Let own(w) be the chunks
of D that start at w, final(e) those that end at e; h the least time to any sender over p from elsewhere, h' from any
receiver over p to elsewhere.

(1) M = 1, from w to e: n - own(w) chunks came to w before, by its entries; n - final(e) leave e after, by its exits.
(2) M = 2: if the first starts before h, its chunks start at its sender w; if the last arrives later than time - h', its
    chunks end at its receiver e. With both n <= |own(w) + final(e) - chunks from w to e|, so for larger n
    time >= occupancy_2 + latency + min(h, h').
(3) M >= 3: time >= occupancy_3 + latency.
(4) By s, w has heard of I(s) of the sources at most; of what comes to e a time r before the end, J(r) targets get some:
    by the growth engine, flat. With c the most that is from one source to one target, a message that starts at s and
    arrives r before the end carries n <= c I(s) J(r). It is M = 1 alone; of M = 2, the second starts after the first.

So a time T leaves p so many chunks, the most of what the cases allow; all of D are counted somewhere. Of divisible
chunks the same is said of bytes, in units of which the last may be there in part (growth.py).

**Example.** Two DGX-2, a pair of 16 GPUs to a NIC: 32 chunks each, 2.6 us of their bytes, 1.3 us a message, 0.7 us one
within a node. In one message, sources times targets are 32: five doublings, 1.3 + 2.6 + 5 x 0.7 us. In two, without
any time before and after, the first is of one source and the second to one target: for 16 chunks each that leaves too
little time after the one, and before the other. So one of them waits for 0.7 us: 2 x 1.3 + 2.6 + 0.7 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadmaster.models.collective.bounds.broadcasts import pipelining_ns, relaying_ns
from loadmaster.models.collective.bounds.cuts import completions
from loadmaster.models.collective.bounds.growth import Growth, Units, flat_growth, open_links
from loadmaster.models.collective.bounds.knowledge import sharing_ns, totals_ns
from loadmaster.models.collective.bounds.meeting import spread_ns
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, IntArray, Machine, Network, first_allowed_ns
from loadmaster.models.collective.bounds.node_entries import only_entry_ns, releasing_ns


def few_messages_ns(network: Network, node: int) -> int:
    """The bound of the chunks of one source and one target that must enter a node."""
    inside = network.node_of == node
    chunks = ~network.reduces & (network.sources.sum(axis=1) == 1) & (network.targets.sum(axis=1) == 1)
    chunks &= ~network.sources[:, inside].any(axis=1) & network.targets[:, inside].any(axis=1)
    if not chunks.any() or not network.node_entries[node]:
        return NEVER if chunks.any() else 0
    into = _Into(network, chunks)
    entries = [_Entry(into, machine) for machine in network.node_entries[node]]
    count = len(into.message_bytes)
    return first_allowed_ns(lambda ns: sum(entry.chunks(ns) for entry in entries) < count, 0)


class _Into:
    """Quantities that all machines into a node share.

    Attributes:
        between: [ranks, ranks] how much of D is from each to each; ``one`` is a unit of it, ``most`` the most.
        message_bytes: [units] what a message of 1, 2 .. units carries at least.
        heard, served: of how many sources a rank may have heard by a time, and how many targets what it has may serve.
    """

    def __init__(self, network: Network, chunks: BoolArray) -> None:
        self.network = network
        unit_bytes, self.message_bytes = network.units_of(chunks)
        self.one = unit_bytes if network.divisible else 1
        self.between = np.zeros((network.rank_count, network.rank_count), dtype=np.int64)
        ends = network.sources[chunks].argmax(axis=1), network.targets[chunks].argmax(axis=1)
        np.add.at(self.between, ends, network.size_bytes[chunks] if network.divisible else 1)
        self.most = int(self.between.max())
        usable, least_bytes = (
            open_links(network, chunks) > 0,
            network.least_bytes(int(network.size_bytes[chunks].min())),
        )
        of_ends = (np.asarray(of[chunks].any(axis=0)) for of in (network.sources, network.targets))
        self.heard, self.served = (
            flat_growth(network, ranks, least_bytes, usable, backwards=backwards)
            for ranks, backwards in zip(of_ends, (False, True), strict=True)
        )


class _Entry:
    """One machine into the node; ``single_ns``, ``two_ns``, ``three_ns``: [units] the times of (1) to (3).
    ``heard_ns``: when one of its senders may have heard of 1, 2 .. sources. ``served_ns``: how long before the end what
    one of its receivers gets may serve 1, 2 .. targets."""

    def __init__(self, into: _Into, machine: Machine) -> None:
        network, message_bytes, one = into.network, into.message_bytes, into.one
        topology, between = network.topology, into.between
        links = [topology.links[k] for k in machine.links]
        senders, receivers = sorted({k.source for k in links}), sorted({k.target for k in links})
        own, final = -(-between.sum(axis=1)[senders] // one), -(-between.sum(axis=0)[receivers] // one)
        n = np.arange(1, len(message_bytes) + 1)
        self.latency_ns, self.message_ns = min(k.latency_ns for k in links), machine.message_ns
        self.bytes_ns = machine.bytes_ns(message_bytes)
        taken_ns = self.bytes_ns + self.latency_ns
        before = [_moved(network, network.entries[w], topology.in_links[w], message_bytes) for w in senders]
        after = [_moved(network, network.exits[e], topology.out_links[e], message_bytes) for e in receivers]
        gathered = np.min([times[np.maximum(n - held, 0)] for times, held in zip(before, own, strict=True)], axis=0)
        handed = np.min([times[np.maximum(n - held, 0)] for times, held in zip(after, final, strict=True)], axis=0)
        ends = between.sum(axis=1)[senders][:, None] + between.sum(axis=0)[receivers]
        most = -(-int((ends - between[np.ix_(senders, receivers)]).max()) // one)
        beside_ns = min(min(int(times[1]) for times in before), min(int(times[1]) for times in after))
        self.single_ns = gathered + machine.message_ns + taken_ns + handed
        self.two_ns = 2 * machine.message_ns + taken_ns + np.where(n > most, beside_ns, 0)
        self.three_ns = 3 * machine.message_ns + taken_ns
        self.heard_ns, self.served_ns = (
            np.min([growth.tau[growth.colour_of[r], 1:] for r in ranks], axis=0)
            for growth, ranks in ((into.heard, senders), (into.served, receivers))
        )
        self._most, self._one = into.most, one

    def chunks(self, until_ns: int) -> int:
        """The most that it may bring by a time."""
        times = self.single_ns, self.two_ns, self.three_ns
        one, two, three = (int(np.searchsorted(of_case, until_ns, side="right")) for of_case in times)
        if three >= max(one, two):
            return three
        left_ns = until_ns - self.latency_ns
        first = self._over_ns(left_ns, self.heard_ns, self.served_ns)
        second = self._over_ns(left_ns, self.served_ns, self.heard_ns)
        alone = int(np.searchsorted(first, left_ns, side="right"))
        ends = np.concatenate([np.zeros(1, dtype=np.int64), first[:alone]])
        together = int((np.arange(alone + 1) + np.searchsorted(second, left_ns - ends, side="right")).max())
        return max(min(one, alone), min(two, together), three)

    def _over_ns(self, left_ns: int, before_ns: IntArray, after_ns: IntArray) -> IntArray:
        """Earliest end of a message of 1, 2 .. units by (4), [units], or NEVER. From the end, targets come before."""
        starts = np.unique(before_ns)
        before = np.searchsorted(before_ns, starts, side="right")
        ends = starts[:, None] + self.message_ns + self.bytes_ns
        after = np.searchsorted(after_ns, left_ns - ends, side="right")
        most = -(-self._most * before[:, None] * after // self._one)
        found: IntArray = np.where(most >= np.arange(1, len(self.bytes_ns) + 1), ends, NEVER).min(axis=0)
        return found


def _moved(network: Network, machines: tuple[Machine, ...], links: Sequence[int], message_bytes: IntArray) -> IntArray:
    """Least time in which a rank gets, or gets rid of, 0, 1 .. units: [units + 1]."""
    if not machines:
        return np.concatenate([np.zeros(1, dtype=np.int64), np.full(len(message_bytes), NEVER, dtype=np.int64)])
    found = completions(machines, message_bytes)
    found[1:] += min(network.topology.links[k].latency_ns for k in links)
    return found


# The engine's time grows with the square of the units; more chunks than this at one rank are bounded by cuts alone.
LARGEST_COUNT = 1024


def gathering_bounds(
    network: Network, *, mirrored: bool = False, over: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, str]]:
    """Yield all bounds of this module, at typical ranks and chunks; slow ones ask ``over`` and end with their best.
    ``mirrored``: seen from the end, where delivery and few messages say nothing that was not said forwards."""
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
    """Yield bounds on the time when every rank that wants all of some copied chunks D, [chunks], has them."""
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
