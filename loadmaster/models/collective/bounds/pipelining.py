"""Many chunks from one rank around a switch: all ports together, and who may be first to hear of a chunk.

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
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable

from loadmaster.models.collective.bounds.network import Network

_FINE = 10**6
# Of more ranks or chunks than this the first terms say nearly all.
_LARGEST = 512


def pipelining_ns(
    network: Network, root: int, size_bytes: int, chunks: int, least_ns: int, over: Callable[[], bool] = lambda: False
) -> int:
    """The bound of chunks of one size from one rank to all others, from a time on that is known to be needed.

    Args:
        over: asked from try to try; what is refuted by then holds.
    """
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
        """Return whether no schedule ends by a deadline."""
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
