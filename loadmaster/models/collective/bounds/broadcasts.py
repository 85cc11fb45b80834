"""Bounds of broadcasts of many chunks from one rank: around a switch, and by relays.

**Around a switch**: all ports together, and who may be first to hear of a chunk.

k chunks start on a root; N other ranks need them all. Every rank sends on one port and receives on one port, a chunk
takes g or more on both and arrives L later; lambda = g + L. (Messages of several chunks may be cut into one after
another, message_ns forgotten: nothing arrives later.) Let F(x) be the ranks that hear of a chunk within x of its being
on a rank, itself included, F(x) = 1 + F(x - lambda) + F(x - lambda - g) + .. (postal model: Bar-Noy and Kipnis).

A *delivery* is the first arrival of a chunk at a rank, kN in all. Each comes down from one send of the root; the i-th
(from 0) starts at i g or later, so by y there are D(y) <= U(y) = sum over i of min(N, F(y - i g - lambda)) deliveries.
Let no schedule but one by T be looked at, and y_m = T - m g. Arrivals at a rank are g apart, at most m of them in
(y_m, T]: kN - N m <= D(y_m). So

(1) kN - N m <= U(y_m) for all m, or there is no schedule by T. Call m *tight* where they are equal. Then D(y_m) =
    U(y_m); every rank has exactly m deliveries in (y_m, T]; and each send i of the root, to a rank r_i where it arrives
    at t_i, brought min(N, F(x)) by y_m, with x = y_m - i g - lambda. Where 1 <= F(x) <= N that says more:
    - t_i <= y_m - (the last x' <= x at which F grows);
    - r_i itself sends the chunk floor((x - lambda) / g) + 1 times, from i g + lambda to y_m - lambda, if x >= lambda.
      As often as it can: if x - g >= lambda, i + 1 has yet to be sent too, and r_i is not r_{i+1}.
(2) Let n and n + 1 be tight, r_i not r_{i+1}, i g + lambda > y_{n+1}. In (y_{n+1}, y_n] rank r_{i+1} has exactly one
    delivery, g before t_{i+1} > y_n or earlier; r_i has one at t_i. So up to Z = max(t_i, t_{i+1} - g), at its latest,
    there are two after y_{n+1}: U(Z) >= U(y_{n+1}) + 2, or there is no schedule by T.

Bisection looks for the last T that (1) or (2) refutes. Times are whole millionths of a nanosecond, g rounded down.

**By relays.** A broadcast starts slowly: others can pass on nothing before they have heard of it.

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

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadmaster.models.collective.bounds.network import NEVER, BoolArray, Machine, Network

_FINE = 10**6
# Of more ranks or chunks than this the first terms say nearly all.
_LARGEST = 512


def pipelining_ns(
    network: Network, root: int, size_bytes: int, chunks: int, least_ns: int, over: Callable[[], bool] = lambda: False
) -> int:
    """The bound of chunks of one size from one rank to all others, above the known ``least_ns``; ``over`` ends it."""
    links = [network.topology.links[k] for k in network.used_links]
    others = network.rank_count - 1
    ports = [*network.entries, *network.exits]
    if len({k.latency_ns for k in links}) > 1 or any(len(machines) > 1 for machines in ports):
        return 0
    if others < 2 or not network.exits[root] or max(others, chunks) > _LARGEST:
        return 0
    # One less than rounded down: the costs of a link are rounded to as much.
    gap = math.floor(size_bytes / max(k.gbps for k in links) * _FINE) - 1
    if gap <= 0:
        return 0
    postal = _Postal(gap, links[0].latency_ns * _FINE, others, chunks)
    low, high = least_ns - 1, 2 * least_ns
    while high - low > 1 and not over():
        middle = (low + high) // 2
        low, high = (middle, high) if postal.refuted(middle * _FINE) else (low, middle)
    return low + 1


class _Postal:
    """The broadcast, in millionths of a nanosecond."""

    def __init__(self, gap: int, latency: int, others: int, chunks: int) -> None:
        self._gap, self._on, self._others, self._chunks = gap, gap + latency, others, chunks
        # When F grows by one, from F(0) = 1 to N + 1.
        self._grows, coming = [0], [self._on]
        while len(self._grows) <= others:
            at = heapq.heapreplace(coming, coming[0] + gap)
            heapq.heappush(coming, at + self._on)
            self._grows.append(at)

    def refuted(self, deadline: int) -> bool:
        tight: dict[int, int] = {}
        for m in range(self._chunks + 1):
            needed, until = self._others * (self._chunks - m), deadline - m * self._gap
            most = self._delivered(until)
            if most < needed:
                return True
            if most == needed:
                tight[m] = until
        return self._two_too_early(tight)

    def _left(self, i: int, until: int) -> int:
        """Time that the i-th send of the root has left, x."""
        return until - i * self._gap - self._on

    def _delivered(self, until: int) -> int:
        """Most deliveries that are possible by a time, U."""
        sends = range(max(0, (until - self._on) // self._gap + 1))
        return sum(min(self._others, bisect_right(self._grows, self._left(i, until))) for i in sends)

    def _two_too_early(self, tight: dict[int, int]) -> bool:
        """Return whether (2) refutes the deadline, for any send of the root and any n."""
        latest: dict[int, int] = {}
        differ: set[int] = set()
        for until in tight.values():
            for i in range(max(0, (until - self._on) // self._gap + 1)):
                left = self._left(i, until)
                reached = bisect_right(self._grows, left)
                if reached <= self._others:
                    latest[i] = min(latest.get(i, until), until - self._grows[reached - 1])
                    if left - self._gap >= self._on:
                        differ.add(i)
        for n in tight:
            since = tight.get(n + 1)
            if since is None:
                continue
            for i in differ:
                if i * self._gap + self._on > since:
                    end = max(latest[i], latest[i + 1] - self._gap)
                    if self._delivered(end) < self._delivered(since) + 2:
                        return True
        return False


_HAIR_NS = 1e-3


def relaying_ns(network: Network, root: int, chunks: BoolArray) -> int:
    """Bound the ``chunks`` [chunks] that start on ``root`` alone and that all parties need: ranks, or nodes."""
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
    """Bytes sent by a time, by the root's party and by all parties together; ``latency`` is L, ``others`` p. ``heads``:
    when each exit of the root's party may start, and its gbps. ``leave``: gbps of all other exits."""

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
