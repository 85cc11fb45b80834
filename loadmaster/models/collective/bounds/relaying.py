"""A broadcast starts slowly: others can pass on nothing before they have heard of it.

Cut the ranks into parties, single ranks or nodes: party 0 has S bytes of chunks (copies) that start on one rank of it,
p others need them all. Let L be the least latency of links between parties. Count bytes while they are on the links
into a party, as a fluid: by time t, those of messages that bring a party its first copy of them. Machines cover the
links into a party, and those out of it.

- Party 0 has sent R(t) = sum of gbps (t - h)+ at most, over its exits; h is the time from the source to the nearest
  sender of each.
- No other party sends anything before L, nor anything that it has not heard of. What any of them has heard of by t was
  sent by party 0 by t - L; each byte of that goes to p - 1 others at most, and there to r ranks. So the others have
  sent at most the lesser of (p - 1) R(t - L) and the sum of their exits' gbps (t - L)+; with r copies to a party, of
  r (p - 1) R(t - L) and that.

So X(t), both together, is all first copies sent by t, and Y(t) all copies, r of them; the rest goes into the p parties
from t on. A machine's last message has left L before the end. The ranks of a party learn from one another in l at
least. So either a first copy comes l before the end, or all r ranks of its party get the byte over the entries: r bytes
for one. Of F bytes of the second kind, and E gbps of entries, p together,

    p S - F <= X(t) + E (T - L - l - t)+,    p S + (r - 1) F <= Y(t) + E (T - L - t).

r - 1 times the first and the second give, with E u = p S - X(t) + (X(t) - Y(t)) / r, that

    T >= t + L + min(r u, u + l (r - 1) / r),    wherever u > 0:

T - L < t would leave p S <= X(t). (Summed over parties; r is of the party with the fewest ranks that need it.) That is
so for every t: those at which R, its shift by L, or the lesser of two changes its slope are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmaster.models.collective.bounds.network import NEVER, BoolArray, Machine, Network

_HAIR_NS = 1e-3


def relaying_ns(network: Network, root: int, chunks: BoolArray) -> int:
    """The bound for some chunks that start on one rank and are needed in every party: of ranks, and of nodes.

    Args:
        chunks: [chunks] that start on ``root`` alone and have the same targets.
    """
    everyone = range(network.rank_count)
    ranks = _Cut(tuple(everyone), dict(enumerate(network.entries)), dict(enumerate(network.exits)))
    nodes = _Cut(network.topology.node_of, network.node_entries, network.node_exits)
    wanting = network.targets[int(chunks.argmax())]
    size_bytes, best = int(network.size_bytes[chunks].sum()), 0
    for cut in (ranks, nodes):
        needing = dict.fromkeys(set(cut.party_of) - {cut.party_of[root]}, 0)
        for rank in everyone:
            if wanting[rank] and cut.party_of[rank] in needing:
                needing[cut.party_of[rank]] += 1
        if needing and min(needing.values()) > 0:
            best = max(best, _bound_ns(network, cut, root, size_bytes, min(needing.values())))
    return best


@dataclass(frozen=True)
class _Cut:
    """Parties: that of each rank, and the machines of the links into each and out of it."""

    party_of: Sequence[int]
    entries: Mapping[int, Sequence[Machine]]
    exits: Mapping[int, Sequence[Machine]]


def _bound_ns(network: Network, cut: _Cut, root: int, size_bytes: int, ranks: int) -> int:
    """The bound of one cut; ``ranks`` of every party but the root's need all, at least."""
    links = [network.topology.links[k] for k in network.used_links]
    crossing = [k for k in links if cut.party_of[k.source] != cut.party_of[k.target]]
    local = [k for k in links if cut.party_of[k.source] == cut.party_of[k.target]]
    if not crossing:
        return NEVER
    latency = min(k.latency_ns for k in crossing)
    home, distance = cut.party_of[root], network.distance_ns.min(axis=0)[root]
    heads = [
        (float(min(distance[network.topology.links[k].source] for k in machine.links)), machine.gbps)
        for machine in cut.exits[home]
    ]
    others = [party for party in cut.entries if party != home]
    enter = math.fsum(machine.gbps for party in others for machine in cut.entries[party])
    leave = math.fsum(machine.gbps for party in others for machine in cut.exits[party])
    flow = _Flow(heads, leave, latency, len(others))
    if not enter:
        return NEVER
    learn = min((k.transfer_ns(network.least_bytes(1)) for k in local), default=NEVER)
    best = 0.0
    for t in flow.times():
        sent = flow.sent(t, 1) + (flow.sent(t, ranks) - flow.sent(t, 1)) / ranks
        rest = (len(others) * size_bytes - sent) / enter
        if rest > 0.0:
            best = max(best, t + latency + min(ranks * rest, rest + learn * (ranks - 1) / ranks))
    return math.ceil(best - _HAIR_NS)


@dataclass(frozen=True)
class _Flow:
    """Bytes sent by a time, by the root's party and by all parties together.

    Attributes:
        heads: per exit of the root's party, when it may start, and its gbps.
        leave: gbps of all other exits.
        latency: L.
        others: p.
    """

    heads: Sequence[tuple[float, float]]
    leave: float
    latency: int
    others: int

    def sent(self, t: float, copies: int) -> float:
        """Most bytes sent by a time: X, or Y with so many copies for each party."""
        return self._by_root(t) + min(copies * self._heard(t), self._passed(t))

    def times(self) -> Iterator[float]:
        """Yield the times at which X changes its slope."""
        starts = {start for start, _ in self.heads}
        found = sorted({0.0, float(self.latency), *starts, *(start + self.latency for start in starts)})
        yield from found
        for a, b in pairwise([*found, 2 * found[-1] + 1]):
            before, after = self._heard(a) - self._passed(a), self._heard(b) - self._passed(b)
            # Both are straight from one to the next; beyond the last, their crossing may be later than that.
            if before != after and a < (t := a + (b - a) * before / (before - after)) and (t < b or b > found[-1]):
                yield t

    def _by_root(self, t: float) -> float:
        """Most bytes that the root's party has sent by a time, R."""
        return math.fsum(gbps * max(0.0, t - start) for start, gbps in self.heads)

    def _heard(self, t: float) -> float:
        return (self.others - 1) * self._by_root(t - self.latency)

    def _passed(self, t: float) -> float:
        return self.leave * max(0.0, t - self.latency)
