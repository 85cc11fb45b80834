"""A second opinion on schedules: every nanosecond is walked through, and values are bags of contributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.plan import Send
from loadmaster.models.topologies.topology import Link


def holds(instance: Instance, sends: Sequence[Send]) -> bool:
    """Whether a schedule is right; for links that take time, and chunks of some bytes."""
    links = [link for link in (_link(instance, send) for send in sends) if link is not None]
    if len(links) < len(sends) or any(not 0 <= c < len(instance.chunks) for s in sends for c in s.chunks):
        return False
    sizes = [sum(instance.chunks[c].size_bytes for c in send.chunks) for send in sends]
    busy_until = [s.start_ns + k.occupancy_ns(size) for s, k, size in zip(sends, links, sizes, strict=True)]
    arrives = [s.start_ns + k.transfer_ns(size) for s, k, size in zip(sends, links, sizes, strict=True)]
    bags = {
        (c, rank): Counter([rank] if chunk.reduces else ["data"])
        for c, chunk in enumerate(instance.chunks)
        for rank in chunk.sources
    }
    whole = [Counter(chunk.sources if chunk.reduces else ["data"]) for chunk in instance.chunks]
    passed_on: set[tuple[int, int]] = set()
    carried: dict[int, list[Counter[object]]] = {}
    for now in range(max(arrives, default=0) + 1):
        for resource in range(len(instance.topology.resources)):
            at_once = [
                i for i, k in enumerate(links) if resource in k.resources and sends[i].start_ns <= now < busy_until[i]
            ]
            if len(at_once) > 1:
                return False
        for i, send in enumerate(sends):
            if arrives[i] == now and i in carried:
                for c, bag in zip(send.chunks, carried[i], strict=True):
                    here = c, send.target
                    held = bags.get(here, Counter())
                    if send.combines:
                        if here in passed_on or held == whole[c]:
                            return False
                        bags[here] = held + bag
                        if max(bags[here].values()) > 1:
                            return False
                    else:
                        if held and held != whole[c] and here not in passed_on:
                            return False
                        bags[here] = bag
        for i, send in enumerate(sends):
            if send.start_ns == now:
                carried[i] = []
                for c in send.chunks:
                    there = c, send.source
                    if not instance.may_send(c, links[i]) or not bags.get(there):
                        return False
                    if send.combines:
                        if not instance.chunks[c].reduces or there in passed_on:
                            return False
                        passed_on.add(there)
                    elif bags[there] != whole[c]:
                        return False
                    carried[i].append(bags[there])
    if len(carried) < len(sends):
        return False
    return all(bags.get((c, rank)) == whole[c] for c, chunk in enumerate(instance.chunks) for rank in chunk.targets)


def _link(instance: Instance, send: Send) -> Link | None:
    return next((k for k in instance.topology.links if (k.source, k.target) == (send.source, send.target)), None)
