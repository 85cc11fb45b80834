"""Sums of whole nodes, or more than must, travel between nodes; and copies that come late travel more as well.

As in counting.py (p parties, here nodes; machines into them; S bytes of sums with sources and targets in every node; L
the least latency between nodes), let T be the end and X = T - L. Let h be the least time in which the parts of a node
can be on one rank of it, t that from a rank of it to its targets (both by the growth engine, flat, and by distance).

A byte is in p - 1 + x messages with parts, one at least out of each node but w's. Where a node sends but one, all its
parts came to the sender before, within the node: it starts at h or later. So of *early* ones, which start before h, a
node sends none, or two at least, and w's node owes none: x is at least half of their number. Copies the same from the
end: *late* ones leave their machine after X - t. So early and late bytes count for half of themselves, and what counts
is 2 (p - 1) S at least. Copies start at in or later, parts have left by X - out (meeting.py; in >= h, out >= t).

Take one machine, with m = message_ns. Early messages come first on it, late ones last. What it loses of gbps X is

(1) with two others or more: 2 m for them, f before them and b after them. Before: h, or an early message, its m and
    half of its bytes, up to h or later. That is f = (h + min(h, m)) / 2 at least; b is the same of t;
(2) with one other, of copies, that starts at s >= in: m, b after it, and before it s less half of s - m, for early
    messages. It carries no more than is whole by s, z(s): a byte of which p - 1 messages with parts count, which have
    left their machines by s - L, having lost m and f there, or m and half. So it carries the lesser of z(s) and
    gbps (X - s - m - b); the sum with the early ones grows with s as long as z(s) is the lesser, and falls from there;
(3) with one other, of parts: the same from the end;
(4) with none: X - m, halved, is what it has.

No schedule ends by T where the most of the four, summed over machines, is less than 2 (p - 1) S.

**Example.** Two DGX-1 with 8 GPUs and 4 NICs each (1.7 us a message, 9.9 GB/s), NVLinks of 0.7 us: parts of a node take
h = 1.4 us to one GPU, copies as long; f = b = 1.4 us. So NICs lose 2 x 1.7 + 2 x 1.4 = 6.2 us next to their bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.models.collective.bounds.network import Machine, first_allowed_ns

_HAIR_NS = 1e-3


@dataclass(frozen=True)
class Phase:
    """Parts seen from the start, or copies from the end: ``home_ns`` is h or t in a node, ``all_ns`` is in or out."""

    home_ns: int
    all_ns: int

    def lost_ns(self, message_ns: int) -> float:
        """Time of a machine that this phase leaves unused: f, or b."""
        return (self.home_ns + min(self.home_ns, message_ns)) / 2


def node_sums_ns(machines: Sequence[Machine], parties: int, size_bytes: int, latency_ns: int, *phases: Phase) -> int:
    """The first end that is not refuted: S = ``size_bytes``, L = ``latency_ns``, the phases of parts and of copies."""
    busy = _Machines(Counter((m.gbps, m.message_ns) for m in machines), parties, latency_ns, phases)
    needed = 2 * (parties - 1) * size_bytes
    return first_allowed_ns(lambda ns: busy.carried(ns - latency_ns) + _HAIR_NS < needed, latency_ns)


@dataclass(frozen=True)
class _Machines:
    """All machines: how many there are of each gbps and message_ns."""

    count: Counter[tuple[float, int]]
    parties: int
    latency_ns: int
    phases: Sequence[Phase]

    def carried(self, ns: int) -> float:
        """The most that counts of what they carry in X ns."""
        return math.fsum(many * gbps * self._used_ns(ns, gbps, m) for (gbps, m), many in self.count.items())

    def _used_ns(self, ns: int, gbps: float, message_ns: int) -> float:
        """Time that one machine can spend on bytes, in ns: the most of (1) to (4)."""
        parts, copies = self.phases
        two = ns - parts.lost_ns(message_ns) - copies.lost_ns(message_ns) - 2 * message_ns
        return max(
            0.0,
            two,
            self._one_ns(ns, gbps, message_ns, parts, copies),
            self._one_ns(ns, gbps, message_ns, copies, parts),
            (ns - message_ns) / 2,
        )

    def _one_ns(self, ns: int, gbps: float, message_ns: int, before: Phase, after: Phase) -> float:
        """Time by (2), or by (3) from the end: at in, or at the last whole nanosecond at which z is the lesser."""
        end = ns - message_ns - after.lost_ns(message_ns)
        if end <= before.all_ns:
            return 0.0
        low, high = before.all_ns, math.ceil(end) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._whole(middle, before) <= gbps * (end - middle) else (low, middle)
        return max(0.0, end - low) + max(0, low - message_ns) / 2

    def _whole(self, ns: int, phase: Phase) -> float:
        """Bytes of all nodes that are whole by a time, z."""
        until = ns - self.latency_ns
        return math.fsum(
            many * gbps * max(0.0, until - phase.lost_ns(m) - m, (until - m) / 2) / (self.parties - 1)
            for (gbps, m), many in self.count.items()
        )
