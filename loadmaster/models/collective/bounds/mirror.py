"""Sums to one rank each are broadcasts from it, seen from the end: bounds of copies hold for them too.

Take a schedule that ends by T, and of its chunks the sums with one target t each. Call a message useful to such a chunk
if it carries parts of it to t, or to a rank that sends a useful one at or after the arrival. Every source but t sends a
useful one, or its part would not come to t. Now let every message that is useful to some of these chunks run the other
way, with these only: one over link k that started at s starts at T - s - occupancy - latency, over k the other way, and
arrives by T - s. Then

- its sender has each chunk: it is t, or the useful message it sent at or after the arrival arrives in time;
- where all links that hold a resource have one latency, the messages on it are shifted equally and stay disjoint.

So this is a schedule by T of copies from each t to all sources. Which ranks may send to other nodes is forgotten.
"""

from __future__ import annotations

from loadmaster.models.collective.instance import Chunk, Instance


def mirrored(instance: Instance) -> Instance | None:
    """The copies that the sums to one rank are from the end; None without any, or where latencies differ."""
    chunks = tuple(
        Chunk(c.size_bytes, c.targets, c.sources) for c in instance.chunks if c.reduces and len(c.targets) == 1
    )
    latency: dict[int, int] = {}
    for link in instance.topology.links:
        for resource in link.resources:
            if latency.setdefault(resource, link.latency_ns) != link.latency_ns:
                return None
    return Instance(instance.topology.reversed(), chunks) if chunks else None
