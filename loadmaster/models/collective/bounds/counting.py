"""AllReduce moves every chunk at least 2 (p - 1) times between p parties: p - 1 times in parts, p - 1 times whole.

Cut the ranks into p parties, each with both sources and targets of a sum. The ways of parts to the rank where the sum
is first whole (meeting.py) join all parties, which takes p - 1 messages between them; each of the other p - 1 parties
gets the whole by one more at least. (Gossip by one-way calls takes 2 p - 2 of them: Harary and Schwenk, 1974.)

Machines cover the links into all parties; S bytes of sums, B = sum of gbps. What counts has left them L, the least
latency, before the end. Parts have arrived by time - out, copies start at in or later.

(1) **To and fro.** Machines carry 2 (p - 1) S at least, in two messages or more, for most of the parts and of the
    copies are on different ones: to_and_fro.py.
(2) **There, or on.** Parts alone take L + message_ns + u, u = (p - 1) S / B, up to time - out; copies take as long from
    in on. Where every party has r sources, and the least local transfer takes l, parts take a little longer. Either a
    message with parts leaves the party at l or later; or all its ranks' parts left before l, when none had come to
    another rank there, and that took r messages. With F bytes of the second sort,

        (p - 1) S - F <= B (x - l)+,    (p - 1) S + (r - 1) F <= B x,    x = time - out - L - message_ns;

    r - 1 times the first and the second give x >= min(r u, u + l (r - 1) / r). Copies the same from the end: a first
    copy comes l before the end, or all r targets of the party get theirs over the entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmaster.models.collective.bounds.meeting import Meeting
from loadmaster.models.collective.bounds.network import NEVER, Machine, Network
from loadmaster.models.collective.bounds.node_sums import Phase, node_sums_ns
from loadmaster.models.collective.bounds.to_and_fro import to_and_fro_ns, waiting
from loadmaster.models.topologies.topology import Link

_HAIR_NS = 1e-3


def counting_bounds(network: Network, meetings: Sequence[Meeting]) -> Iterator[tuple[int, str]]:
    """Yield (1) and (2) for sums with several targets, between ranks and between nodes; for nodes also node_sums.py."""
    in_ns = out_ns = home_in_ns = home_out_ns = 0
    if meetings and sum(found.count for found in meetings) == sum(c.goes_on for c in network.instance.chunks):
        in_ns = min(int(found.in_ns.min()) for found in meetings)
        out_ns = min(int(found.out_ns.min()) for found in meetings)
        home_in_ns = min(int(found.home_in_ns.min()) for found in meetings)
        home_out_ns = min(int(found.home_out_ns.min()) for found in meetings)
    for cut in _cuts(network):
        latency_ns = min(k.latency_ns for k in cut.crossing)
        waits = waiting(network, cut.party_of, cut.crossing, cut.chunks)
        alone_ns = min(in_ns, out_ns)
        found_ns = to_and_fro_ns(cut.machines, cut.parties, cut.sum_bytes, latency_ns, alone_ns, waits)
        yield found_ns, f"parts to and fro between {cut.between}"
        one_way = latency_ns + min(k.message_ns for k in cut.machines) + cut.bytes_between / cut.gbps
        there, on = (one_way + _learning_ns(network, cut, ranks) for ranks in (cut.sources, cut.targets))
        yield math.ceil(max(out_ns + there, in_ns + on) - _HAIR_NS), f"parts, then copies between {cut.between}"
        if cut.between == "nodes" and (home_in_ns or home_out_ns):
            phases = Phase(home_in_ns, in_ns), Phase(home_out_ns, out_ns)
            yield node_sums_ns(cut.machines, cut.parties, cut.sum_bytes, latency_ns, *phases), "sums of whole nodes"


def least_traffic(network: Network) -> Iterator[float]:
    """Yield the time that the bytes of (1) alone take, in nanoseconds, for each cut that has any."""
    for cut in _cuts(network):
        yield 2 * cut.bytes_between / cut.gbps


@dataclass(frozen=True)
class _Cut:
    """A cut of the ranks into parties, with the sums, links and machines that count between them.

    ``chunks``: the sums with sources and targets in every party, ``sum_bytes`` together; ``sources`` and ``targets``
    are the least numbers of them that a party has. ``machines``: of the links into all parties; a resource may serve
    several, and works for all at its one speed. ``crossing`` and ``local``: links between parties, and within one.
    """

    between: str
    party_of: Sequence[int]
    parties: int
    chunks: Sequence[int]
    sum_bytes: int
    machines: Sequence[Machine]
    crossing: Sequence[Link]
    local: Sequence[Link]
    sources: int
    targets: int

    @property
    def bytes_between(self) -> int:
        """Bytes of parts that cross between parties at least, (p - 1) S; copies take as many."""
        return (self.parties - 1) * self.sum_bytes

    @property
    def gbps(self) -> float:
        """Bandwidth of all machines together, B."""
        return math.fsum(machine.gbps for machine in self.machines)


def _cuts(network: Network) -> Iterator[_Cut]:
    """Yield the cut into ranks and that into nodes, where every party has a part of some sum."""
    topology = network.topology
    links = [topology.links[k] for k in network.used_links]
    ranks = tuple(range(network.rank_count))
    cuts = (("ranks", ranks, network.entries), ("nodes", topology.node_of, list(network.node_entries.values())))
    for between, party_of, entries in cuts:
        parties = [{r for r in ranks if party_of[r] == party} for party in dict.fromkeys(party_of)]
        sums = [
            (index, chunk.size_bytes, *(min(len(party.intersection(of)) for party in parties) for of in ends))
            for index, chunk in enumerate(network.instance.chunks)
            if chunk.reduces
            for ends in [(chunk.sources, chunk.targets)]
        ]
        counted = [found for found in sums if min(found[2:]) > 0]
        machines = _joined(entries)
        if counted and len(parties) > 1 and machines:
            yield _Cut(
                between,
                party_of,
                len(parties),
                [index for index, *_ in counted],
                sum(size_bytes for _, size_bytes, _, _ in counted),
                machines,
                [k for k in links if party_of[k.source] != party_of[k.target]],
                [k for k in links if party_of[k.source] == party_of[k.target]],
                min(sources for _, _, sources, _ in counted),
                min(targets for *_, targets in counted),
            )


def _joined(entries: Iterable[Sequence[Machine]]) -> list[Machine]:
    found: dict[int, Machine] = {}
    for of_party in entries:
        for machine in of_party:
            other = found.get(machine.resource, machine)
            links = tuple(sorted({*machine.links, *other.links}))
            costs = min(machine.message_ns, other.message_ns), max(machine.gbps, other.gbps)
            found[machine.resource] = Machine(machine.resource, links, *costs)
    return list(found.values())


def _learning_ns(network: Network, cut: _Cut, ranks: int) -> float:
    """Time that (2) adds to u, for parties of r ranks."""
    one_bytes = min(network.least_bytes(chunk.size_bytes) for chunk in network.instance.chunks if chunk.reduces)
    local_ns = min((k.transfer_ns(one_bytes) for k in cut.local), default=NEVER)
    one_way = cut.bytes_between / cut.gbps
    return min((ranks - 1) * one_way, local_ns * (ranks - 1) / ranks)
