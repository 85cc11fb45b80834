"""Parts end early and copies start late, on average; so links need more than two messages, or stand still.

As in counting.py: p parties, S bytes of sums with sources and targets in each, machines of the links into parties, L
the least latency between parties. Let T be the end and X = T - L: all that counts has left its machine by X. Of a byte
that is first whole at t, on rank w, these messages count for every party U but that of w:

- one with parts: the last out of U on a way of a part from U to w. At the end e of its occupancy it is still
  tail(U, w) from w, the least latency + distance(target, w) over links out of U. So e <= t - tail(U, w).
- one with the whole: the first into U. Its sender had the whole first, at t + head(U, w) or later, the least
  distance(w, source) over links into U. So its start is s >= t + head(U, w).

They are 2 (p - 1) messages of each byte. Let a byte cost e in one with parts, X - s in one with the whole.

(1) All bytes cost (p - 1) S X - W at most together: t and X - t add up to X. W is S times the least sum of tails and
    heads over w (of sums of several sizes: summed up).

Let k of these messages be on one machine, with x_1, x_2 .. ns of bytes each, x in all, and m = message_ns.

(2) One message comes after another: x <= X - k m. One alone starts at in or later, or has left by X - out, by
    counting.py: x <= X - m - min(in, out).
(3) Ends and starts follow from lengths: the i-th with parts ends at i m + x_1 + .. + x_i or later, and of those with
    the whole, the i-th from the end starts as long before X or longer. (What carries both counts as the cheaper of the
    two.) So parts of A ns and copies of B ns, A + B = x, cost sum of (i m x_i + x_i^2 / 2) + (A^2 + B^2) / 2 at least.
(4) That is x^2 + m x for one message. Of k, two at most are the i-th from their side: so the i are no less than
    1, 1, 2, 2 .., k of them, with mean r and squares of differences from r that sum up to v. For a given x the sum is
    least where i m + x_i is the same for all, and A^2 + B^2 >= x^2 / 2; so k messages cost
    x^2 / 4 + x^2 / (2 k) + r m x - v m^2 / 2 at least. Of more than are looked at it is x^2 / 4 + m x at least.

A byte is worth 1, less q for each ns that it costs. No schedule ends by T if, for some price q >= 0,

    sum over machines of gbps max over k, x of (x - q cost(k, x)) < 2 (p - 1) S - q ((p - 1) S X - W).

**Example.** Eight GPUs of a DGX-1, 0.7 us a message. A GPU has four neighbours; parts of the others are 0.7 us away
when they have left, and copies to them start 0.7 us late: W = S times 4.2 us. Two messages on every link, a part and a
copy of X / 2 each, would cost 14 S X / 2, which is 4.2 us S too much. So some links carry three, or stand still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.bounds.network import NEVER, Machine, Network, first_allowed_ns
from loadmaster.models.topologies.topology import Link

FloatArray = NDArray[np.float64]

# Floats are sums of many terms.
_ROUNDING = 1e-9
# q, times X, that are tried.
_PRICES = np.concatenate([[0.0], np.geomspace(1e-7, 20.0, 400)])
# So many messages are looked at; and, as one more case, all that are more.
_MOST_MESSAGES = 32
_COUNT = np.arange(1, _MOST_MESSAGES + 2)
_NUMBERS = [np.arange(2, k + 2) // 2 for k in _COUNT[:-1]]
# [k] r, v, and what x^2 is multiplied by.
_MEAN = np.array([float(of.mean()) for of in _NUMBERS] + [1.0])
_SPREAD = np.array([float(((of - of.mean()) ** 2).sum()) for of in _NUMBERS] + [0.0])
_SQUARE = np.concatenate([[1.0], 1 / 4 + 1 / (2 * _COUNT[1:-1]), [1 / 4]])


def waiting(network: Network, party_of: Sequence[int], crossing: Sequence[Link], chunks: Iterable[int]) -> float:
    """Total wait W of some sums, where ``crossing`` are the links between parties."""
    size_bytes: Counter[int] = Counter()
    for chunk in chunks:
        size_bytes[int(network.kind_of[chunk])] += int(network.size_bytes[chunk])
    return sum(of_kind * _least_wait_ns(network, kind, party_of, crossing) for kind, of_kind in size_bytes.items())


def to_and_fro_ns(
    machines: Sequence[Machine],
    parties: int,
    sum_bytes: int,
    latency_ns: int,
    alone_ns: int,
    waiting_ns_bytes: float,
) -> int:
    """The first end that is not refuted: S = ``sum_bytes``, L = ``latency_ns``, W = ``waiting_ns_bytes``. ``alone_ns``:
    the lesser of in and out."""
    count = Counter((m.gbps, m.message_ns) for m in machines)
    one_way = (parties - 1) * sum_bytes

    def refuted(ns: int) -> bool:
        left = ns - latency_ns
        if left <= 0:
            return True
        prices = _PRICES / left
        carried = sum(many * gbps * _worth(prices, left, m, alone_ns) for (gbps, m), many in count.items())
        needed = 2 * one_way - prices * (one_way * left - waiting_ns_bytes)
        return bool((carried * (1.0 + _ROUNDING) < needed).any())

    return first_allowed_ns(refuted, latency_ns)


def _worth(prices: FloatArray, left: int, message_ns: int, alone_ns: int) -> FloatArray:
    """Most of x - q cost(k, x) on one machine of 1 GB/s, at each price q: [prices]."""
    q = prices[:, None]
    most = left - _COUNT * float(message_ns)
    most[0] -= alone_ns
    # Where one more ns of bytes would cost as much as it is worth.
    enough = np.divide(
        1.0 - q * _MEAN * message_ns, 2.0 * q * _SQUARE, out=np.full((len(q), len(most)), np.inf), where=q > 0
    )
    x = np.clip(enough, 0.0, np.maximum(most, 0.0))
    cost = _SQUARE * x**2 + _MEAN * message_ns * x - _SPREAD * message_ns**2 / 2
    worth: FloatArray = np.where(most >= 0.0, x - q * cost, 0.0).max(axis=1)
    return worth


def _least_wait_ns(network: Network, kind: int, party_of: Sequence[int], crossing: Sequence[Link]) -> float:
    """Least sum of tails and heads of a byte over all w, in ns."""
    distance_ns = network.distance_ns[kind].astype(np.float64)
    wait = np.zeros(network.rank_count)
    for party in dict.fromkeys(party_of):
        out = [k for k in crossing if party_of[k.source] == party]
        into = [k.source for k in crossing if party_of[k.target] == party]
        latency = np.array([[k.latency_ns] for k in out])
        tail = (distance_ns[[k.target for k in out]] + latency).min(axis=0, initial=NEVER)
        head = distance_ns[:, into].min(axis=1, initial=NEVER)
        wait += np.where(np.array(party_of) == party, 0.0, tail + head)
    return float(wait.min())
