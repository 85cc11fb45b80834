"""Adaptive offloading: how much of a forward pass to send away, so that the step takes no longer.

After [Wu24], section 5.3.5. A forward pass saves tensors 1..n of sizes b_1..b_n at times t_1..t_n, and ends at
T. Memory is fullest about then: what is not stored by T saves nothing. So if m is the last tensor that is sent, one
after the other they are stored by

    w_j = max(w_{j-1}, t_j) + b_j / (what the link writes),      w_m <= T

(SSDTrain asks only that b_m is back when the backward pass needs it: memory counts over the whole step there.) The
backward pass is taken to last twice as long, and reaches tensor j at T + 2 (T - t_j). What was sent has to be back by
then, read in reverse order from time T on. So for every j <= m

    (b_j + ... + b_m) / (2 (T - t_j)) <= what the link reads

All later tensors stay. The stores that are not over when a tensor is saved are the *backlog* that the plan expects; a
cache waits only for those beyond it. Tensors come back as late as the link allows, so that the backward pass has their
room until then: reading b_j begins at

    s_j = min(s_{j-1}, 2 (T - t_j)) - b_j / (what the link reads)

after T. What has to have begun when tensor n is needed is *due*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

BACKWARD_TIMES = 2.0  # the length of a backward pass, in forward passes
WORTH = 0.1  # of what a forward pass saves: to send less is not worth the copies
SETTLED = 0.1  # a forward pass whose bytes differ by more from the planned one is another one


@dataclass(frozen=True)
class Profile:
    """Bytes of each tensor that one forward pass could send, in the order they were saved, and times without waits:
    ``at_s`` of each, after the first, and ``forward_s`` from the first until the backward pass began."""

    sizes: tuple[int, ...]
    at_s: tuple[float, ...]
    forward_s: float

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors that could be sent."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Plan:
    """Plan of a forward pass: the first ``sent`` of its ``tensors``, which have ``total_bytes``, are sent away.
    ``backlog`` has the bytes of stores that are expected not to be over when tensor n is saved; ``due`` those whose
    reading has to have begun when the backward pass needs tensor n, or begins before the next one."""

    tensors: int
    sent: int
    total_bytes: int
    backlog: tuple[int, ...] = ()
    due: tuple[int, ...] = ()

    def fits(self, total_bytes: int) -> bool:
        """Return whether the plan is for a forward pass that saved so many bytes."""
        return abs(total_bytes - self.total_bytes) <= SETTLED * self.total_bytes


def last_sent(profile: Profile, write_bytes_s: float, read_bytes_s: float) -> int:
    """Count the first tensors that can be sent without making the step longer."""
    summed = [0, *accumulate(profile.sizes)]
    found, tightest, stored_s = 0, float("inf"), 0.0
    for m, (size, at_s) in enumerate(zip(profile.sizes, profile.at_s, strict=True), start=1):
        until_needed_s = BACKWARD_TIMES * (profile.forward_s - at_s)
        tightest = min(tightest, summed[m - 1] + read_bytes_s * until_needed_s)
        stored_s = max(stored_s, at_s) + size / write_bytes_s
        if stored_s <= profile.forward_s and summed[m] <= tightest:
            found = m
    return found


def plan_for(profile: Profile, write_bytes_s: float, read_bytes_s: float, *, window_bytes: int) -> Plan:
    """Plan what to send of forward passes like the profiled one; nothing, where that is hardly anything. As much as
    ``window_bytes`` of it, stores that nobody waits for, may still be there at the end."""
    sent = last_sent(profile, write_bytes_s, read_bytes_s)
    if sum(profile.sizes[:sent]) - window_bytes < WORTH * profile.total_bytes:
        sent = 0
    backlog = _backlog(profile.sizes[:sent], profile.at_s, write_bytes_s)
    due = _due(profile, sent, read_bytes_s)
    return Plan(len(profile.sizes), sent, profile.total_bytes, tuple(map(round, backlog)), due)


def plan_to_keep(sizes: Sequence[int], keep_bytes: int) -> Plan:
    """Plan to send all but the last tensors of a forward pass, whose bytes are at most ``keep_bytes``."""
    kept, sent = 0, len(sizes)
    while sent and kept + sizes[sent - 1] <= keep_bytes:
        sent -= 1
        kept += sizes[sent]
    return Plan(len(sizes), sent, sum(sizes))


def _backlog(sizes: Sequence[int], at_s: Sequence[float], write_bytes_s: float) -> list[float]:
    """Bytes of stores that are not over at each of these times, including those that are asked for then."""
    backlog, last_s, found = 0.0, 0.0, []
    for n, now_s in enumerate(at_s):
        backlog = max(0.0, backlog - write_bytes_s * (now_s - last_s)) + (sizes[n] if n < len(sizes) else 0)
        last_s = now_s
        found.append(backlog)
    return found


def _due(profile: Profile, sent: int, read_bytes_s: float) -> tuple[int, ...]:
    """Bytes whose reading begins before the tensor before this one is needed, for each tensor."""
    needed_s = [BACKWARD_TIMES * (profile.forward_s - at_s) for at_s in profile.at_s]
    begins_s, latest_s = [], float("inf")
    for size, until_s in zip(profile.sizes[:sent], needed_s, strict=False):
        latest_s = min(latest_s, until_s) - size / read_bytes_s
        begins_s.append(latest_s)
    next_s = [float("inf"), *needed_s]
    return tuple(
        sum(size for size, begin_s in zip(profile.sizes, begins_s, strict=False) if begin_s < next_s[n])
        for n in range(len(needed_s))
    )
