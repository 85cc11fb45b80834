"""List scheduling of given messages: each starts as soon as the resources of its link are free, the most urgent first.

A sequence that works is given: a message waits for all messages before it in the sequence that bring any of its chunks
to its source. What is left is the order on each resource. Of messages that wait for the same resource, the one with the
longer path goes first; of equals, the first in the sequence. So chains are followed at once, and phases run into each
other.

Where chunks follow one another down the same trees, the longest path alone lets those wait that are nearly done, until
they all come at once. So paths of later chunks count for less: by half of the time by which such a chunk is due later,
which is its share of the work of the busiest resource. (With all of that time, phases no longer run into each other.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.planner.collective.images import Images

# Messages between two looks at the clock.
_LOOK = 1 << 12


def queued(
    instance: Instance,
    messages: Sequence[Send],
    turns: Sequence[int],
    over: Callable[[], bool] = lambda: False,
    images: Images | None = None,
) -> tuple[Send, ...] | None:
    """Schedule messages: with their starts, in order; None where the time was up before.

    Args:
        messages: in a sequence that works; the starts they have are ignored.
        turns: per message, how many chunks go before its chunk: 0 for all where none is due before another.
        images: the symmetries under which these messages make others that start when they do.
    """
    run = _Run(instance, messages, turns, images)
    return run.schedule() if run.until_over(over) else None


class _Run:
    """State between events of :func:`queued`."""

    def __init__(
        self, instance: Instance, messages: Sequence[Send], turns: Sequence[int], images: Images | None
    ) -> None:
        topology = instance.topology
        self._messages = messages
        self._held = [link.resources for link in topology.links]
        if images is not None:
            self._held = [tuple(images.resource[r] for r in held) for held in self._held]
        self._link = [topology.link_between[send.source, send.target] for send in messages]
        self._busy_ns, self._lasts_ns = _durations(instance, messages, self._link)
        self._opens, self._waits = _dependencies(messages)
        self._starts = [0] * len(messages)
        self._free_ns = [0] * len(topology.resources)
        self._urgent = self._urgency(turns)
        # Per link the messages that are ready; per resource the links that have any.
        self._ready: list[list[tuple[int, int]]] = [[] for _ in topology.links]
        self._waiting: list[set[int]] = [set() for _ in topology.resources]
        # (time, message that arrives, or -1 - link that is free again).
        self._events: list[tuple[int, int]] = []

    def schedule(self) -> tuple[Send, ...]:
        found = [
            Send(start_ns, send.source, send.target, send.chunks, send.combines)
            for start_ns, send in zip(self._starts, self._messages, strict=True)
        ]
        found.sort(key=lambda send: (send.start_ns, send.source, send.target))
        return tuple(found)

    def until_over(self, over: Callable[[], bool]) -> bool:
        """Start every message; False where the time was up before."""
        touched = {self._add(m) for m, count in enumerate(self._waits) if not count}
        self._start(0, touched)
        events, done = self._events, 0
        while events:
            now = events[0][0]
            touched = set()
            while events and events[0][0] == now:
                _, what = heapq.heappop(events)
                done += 1
                if what >= 0:
                    touched.update(self._arrived(what))
                else:
                    for resource in self._held[-1 - what]:
                        touched |= self._waiting[resource]
            self._start(now, touched)
            if done >= _LOOK:
                if over():
                    return False
                done = 0
        return True

    def _arrived(self, message: int) -> list[int]:
        """Release the messages that waited for one; return the links over which more may be sent now."""
        found = []
        for later in self._opens[message]:
            self._waits[later] -= 1
            if not self._waits[later]:
                found.append(self._add(later))
        return found

    def _add(self, message: int) -> int:
        """Let a message wait for its link; return that link."""
        link = self._link[message]
        if not self._ready[link]:
            for resource in self._held[link]:
                self._waiting[resource].add(link)
        heapq.heappush(self._ready[link], (-self._urgent[message], message))
        return link

    def _start(self, now: int, touched: set[int]) -> None:
        """Start whatever can start on some links."""
        offers = sorted((self._ready[link][0], link) for link in touched if self._ready[link])
        for _, link in offers:
            held = self._held[link]
            if any(self._free_ns[resource] > now for resource in held):
                continue
            _, message = heapq.heappop(self._ready[link])
            if not self._ready[link]:
                for resource in held:
                    self._waiting[resource].discard(link)
            until = now + self._busy_ns[message]
            for resource in held:
                self._free_ns[resource] = until
            self._starts[message] = now
            heapq.heappush(self._events, (until, -1 - link))
            heapq.heappush(self._events, (now + self._lasts_ns[message], message))

    def _urgency(self, turns: Sequence[int]) -> list[int]:
        """Urgency of each message: its path, less half of the time by which its chunk is due later than the first."""
        work_ns = [0] * len(self._free_ns)
        for busy_ns, link in zip(self._busy_ns, self._link, strict=True):
            for resource in self._held[link]:
                work_ns[resource] += busy_ns
        apart_ns = max(work_ns, default=0) / (2 * (1 + max(turns, default=0)))
        return [path_ns - int(turn * apart_ns) for path_ns, turn in zip(self._paths(), turns, strict=True)]

    def _paths(self) -> list[int]:
        """Longest path from each message's start to an end, each message at its own duration."""
        found = list(self._lasts_ns)
        for m in range(len(found) - 1, -1, -1):
            if self._opens[m]:
                found[m] += max(found[later] for later in self._opens[m])
        return found


def _durations(instance: Instance, messages: Sequence[Send], links: Sequence[int]) -> tuple[list[int], list[int]]:
    """Times of each message in ns: how long it holds its link, and how long it is on its way."""
    known: dict[tuple[int, int], int] = {}
    busy, lasts = [], []
    sizes = [chunk.size_bytes for chunk in instance.chunks]
    for send, k in zip(messages, links, strict=True):
        size_bytes = sizes[send.chunks[0]] if len(send.chunks) == 1 else sum(sizes[c] for c in send.chunks)
        occupancy = known.get((k, size_bytes))
        if occupancy is None:
            occupancy = known[k, size_bytes] = instance.topology.links[k].occupancy_ns(size_bytes)
        busy.append(occupancy)
        lasts.append(occupancy + instance.topology.links[k].latency_ns)
    return busy, lasts


def _dependencies(messages: Sequence[Send]) -> tuple[list[list[int]], list[int]]:
    """Dependencies of each message: those that wait for it, and for how many it waits."""
    arrivals: dict[tuple[int, int], list[int]] = {}
    opens: list[list[int]] = [[] for _ in messages]
    waits = [0] * len(messages)
    for m, send in enumerate(messages):
        needed = {before for c in send.chunks for before in arrivals.get((c, send.source), ())}
        waits[m] = len(needed)
        for before in needed:
            opens[before].append(m)
        for c in send.chunks:
            arrivals.setdefault((c, send.target), []).append(m)
    return opens, waits
