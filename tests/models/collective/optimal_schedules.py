"""The best schedule of a tiny instance, by trying all.

Every left-shifted schedule is tried: sends in the order of their starts, each of any set of chunks that its target
lacks, starting when all it needs is there and its resources are free. (Delaying a send never helps otherwise.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send


@dataclass
class State:
    """``parts[c, r]``: (arrival, sources as bits) of what rank r has of chunk c; ``sent``: parts sent on.

    ``whole_ns[c, r]``: when the rank has it whole, counting what is on its way.
    """

    parts: dict[tuple[int, int], tuple[tuple[int, int], ...]]
    whole_ns: dict[tuple[int, int], int | None]
    sent: frozenset[tuple[int, int]]
    free: tuple[int, ...]
    last: tuple[int, int]

    def key(self) -> tuple[object, ...]:
        return frozenset(self.parts.items()), self.sent, self.free, self.last


class Search:
    """Depth first; ``best_ns`` and ``sends`` at the end. Gives up after ``limit`` states with the best so far."""

    def __init__(self, instance: Instance, limit: int = 200_000) -> None:
        self.instance, self.topology, self.limit = instance, instance.topology, limit
        self.full = [sum(1 << s for s in c.sources) if c.reduces else 1 for c in instance.chunks]
        self.sendable = [
            [(c, chunk) for c, chunk in enumerate(instance.chunks) if instance.may_send(c, link)]
            for link in self.topology.links
        ]
        self.best_ns: int | None = None
        self.sends: tuple[Send, ...] = ()
        self.seen: set[tuple[object, ...]] = set()
        parts = {
            (c, s): ((0, 1 << s if chunk.reduces else 1),)
            for c, chunk in enumerate(instance.chunks)
            for s in chunk.sources
        }
        whole_ns = {(c, r): self._whole_ns(c, arrived) for (c, r), arrived in parts.items()}
        self._from(State(parts, whole_ns, frozenset(), (0,) * len(self.topology.resources), (0, -1)), ())

    @property
    def exact(self) -> bool:
        return len(self.seen) < self.limit

    def _mask(self, state: State, c: int, r: int, at_ns: int | None = None) -> int:
        mask = 0
        for arrival, sources in state.parts.get((c, r), ()):
            if at_ns is None or arrival <= at_ns:
                mask |= sources
        return mask

    def _whole_ns(self, c: int, parts: tuple[tuple[int, int], ...]) -> int | None:
        mask = 0
        for arrival, sources in sorted(parts):
            mask |= sources
            if mask == self.full[c]:
                return arrival
        return None

    def _from(self, state: State, sends: tuple[Send, ...]) -> None:
        if len(self.seen) >= self.limit:
            return
        key = state.key()
        if key in self.seen:
            return
        self.seen.add(key)
        ends = [state.whole_ns.get((c, t)) for c, chunk in enumerate(self.instance.chunks) for t in chunk.targets]
        known = max((end for end in ends if end is not None), default=0)
        if self.best_ns is not None and known >= self.best_ns:
            return
        if None not in ends:
            self.best_ns, self.sends = known, sends
            return
        for send, index in sorted(self._moves(state), key=lambda m: (m[0].start_ns, -len(m[0].chunks))):
            if len(self.seen) >= self.limit:
                return
            self._from(self._after(state, send, index), (*sends, send))

    def _moves(self, state: State) -> Iterator[tuple[Send, int]]:
        for index, link in enumerate(self.topology.links):
            free = max([state.free[r] for r in link.resources])
            copies, sums = [], []
            for c, chunk in self.sendable[index]:
                if state.whole_ns.get((c, link.target)) is not None:
                    continue
                whole = state.whole_ns.get((c, link.source))
                if whole is not None:
                    if not chunk.reduces or (c, link.target) in state.sent or link.target not in chunk.sources:
                        copies.append((c, whole))
                elif chunk.reduces and (c, link.source) not in state.sent and (c, link.target) not in state.sent:
                    mine, theirs = self._mask(state, c, link.source), self._mask(state, c, link.target)
                    if mine and not mine & theirs and (chunk.targets != (link.source,)):
                        sums.append((c, max(a for a, _ in state.parts[c, link.source])))
            for offered, combines in ((copies, False), (sums, True)):
                for count in range(1, len(offered) + 1):
                    for taken in itertools.combinations(offered, count):
                        start = max(free, *(at for _, at in taken))
                        if (start, index) > state.last:
                            chunks = tuple(c for c, _ in taken)
                            send = Send(start, link.source, link.target, chunks, combines)
                            size_bytes = sum(self.instance.chunks[c].size_bytes for c in chunks)
                            if self.best_ns is None or start + link.transfer_ns(size_bytes) < self.best_ns:
                                yield send, index

    def _after(self, state: State, send: Send, index: int) -> State:
        link = self.topology.links[index]
        size_bytes = sum(self.instance.chunks[c].size_bytes for c in send.chunks)
        free = list(state.free)
        for r in link.resources:
            free[r] = send.start_ns + link.occupancy_ns(size_bytes)
        parts, whole_ns, sent = dict(state.parts), dict(state.whole_ns), set(state.sent)
        for c in send.chunks:
            mask = self._mask(state, c, send.source) if send.combines else self.full[c]
            arrived = (send.start_ns + link.transfer_ns(size_bytes), mask)
            parts[c, send.target] = (*parts.get((c, send.target), ()), arrived)
            whole_ns[c, send.target] = self._whole_ns(c, parts[c, send.target])
            if send.combines:
                sent.add((c, send.source))
        return State(parts, whole_ns, frozenset(sent), tuple(free), (send.start_ns, index))
