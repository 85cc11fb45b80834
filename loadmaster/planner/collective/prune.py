"""Schedules made tight: sends that serve nobody taken out, and every send started as early as its order allows.

A schedule here is its sends in order of start. Sends that share a resource, and sends that wait for a chunk, keep that
order; retiming finds the earliest starts that do (the longest paths of that graph), at the size it was planned for or
at another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send


def in_order(sends: Sequence[Send]) -> tuple[Send, ...]:
    """Sort sends by start, then source, then target."""
    return tuple(sorted(sends, key=lambda send: (send.start_ns, send.source, send.target, send.chunks)))


def prune(instance: Instance, sends: Sequence[Send]) -> tuple[Send, ...]:
    """Take out sends that are on no path to a target. A copy serves when its rank wants the chunk or sends it on, the
    first time only. Sums serve always: every part must arrive."""
    ordered = sorted(sends, key=lambda send: (_arrival_ns(instance, send), send.start_ns))
    has = {(c, rank) for c, chunk in enumerate(instance.chunks) if not chunk.reduces for rank in chunk.sources}
    first: list[tuple[Send, list[int]]] = []
    for send in ordered:
        fresh = [c for c in send.chunks if send.combines or (c, send.target) not in has]
        has.update((c, send.target) for c in fresh if not send.combines)
        first.append((send, fresh))
    needed = {(c, rank) for c, chunk in enumerate(instance.chunks) for rank in chunk.targets}
    kept: list[Send] = []
    for send, fresh in sorted(first, key=lambda item: -item[0].start_ns):
        chunks = tuple(c for c in fresh if send.combines or (c, send.target) in needed)
        needed.update((c, send.source) for c in chunks)
        if chunks:
            kept.append(send if chunks == send.chunks else replace(send, chunks=chunks))
    return in_order(kept)


def retime(
    instance: Instance, sends: Sequence[Send], ready_ns: Mapping[tuple[int, int], int] | None = None
) -> tuple[Send, ...]:
    """Start every send as early as its order allows: it waits for its resources, and for the first copy of each of its
    chunks; where its rank has a part of a sum, for every part that arrived before it was sent. ``ready_ns``: when a
    source has a chunk, by (chunk, rank); 0 where it is missing."""
    return _retimed(instance, sends, ready_ns or {})[0]


def finish_ns(instance: Instance, sends: Sequence[Send]) -> int:
    """Time in ns at which the last send has arrived, as the sends are timed."""
    return max((_arrival_ns(instance, send) for send in sends), default=0)


def time_at(instance: Instance, sends: Sequence[Send]) -> int:
    """Time in ns of a schedule on an instance of the same chunks at another size, its order kept."""
    return _retimed(instance, sends, {})[1]


def _retimed(
    instance: Instance, sends: Sequence[Send], ready_ns: Mapping[tuple[int, int], int]
) -> tuple[tuple[Send, ...], int]:
    topology, chunks = instance.topology, instance.chunks
    free = [0] * len(topology.resources)
    # Per chunk and rank: when it may leave.
    there: dict[tuple[int, int], int] = {
        (c, rank): ready_ns.get((c, rank), 0) for c, chunk in enumerate(chunks) for rank in chunk.sources
    }
    whole = {(c, rank) for c, chunk in enumerate(chunks) if not chunk.reduces for rank in chunk.sources}
    timed: list[Send] = []
    finish = 0
    for send in sorted(sends, key=lambda send: send.start_ns):
        link = topology.links[topology.link_between[send.source, send.target]]
        start = 0
        for resource in link.resources:
            if free[resource] > start:
                start = free[resource]
        for c in send.chunks:
            ready = there[c, send.source]
            if ready > start:
                start = ready
        size_bytes = sum(chunks[c].size_bytes for c in send.chunks)
        occupancy = link.occupancy_ns(size_bytes)
        arrival = start + occupancy + link.latency_ns
        for resource in link.resources:
            free[resource] = start + occupancy
        for c in send.chunks:
            key = (c, send.target)
            if send.combines:
                there[key] = max(there.get(key, 0), arrival)
            elif key in whole:
                there[key] = min(there[key], arrival)
            else:
                # A whole value replaces the part that was there, whenever that was ready.
                there[key] = arrival
                whole.add(key)
        finish = max(finish, arrival)
        timed.append(send if start == send.start_ns else replace(send, start_ns=start))
    return in_order(timed), finish


def _arrival_ns(instance: Instance, send: Send) -> int:
    topology = instance.topology
    link = topology.links[topology.link_between[send.source, send.target]]
    return send.start_ns + link.transfer_ns(sum(instance.chunks[c].size_bytes for c in send.chunks))
