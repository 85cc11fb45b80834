"""Messages that must go one after another because one resource is the only way into several ranks, or out of them.

Let all links into each rank of a set R hold one resource. Rank r of R must be sent S_r bytes: each copied chunk that it
wants and does not have, and of each sum that it wants, unless all of it is its own, a part or the whole. A message has
one target, so those for different ranks are different ones. All of them hold the resource, one after another:

    sum over r in R of (message_ns + S_r / gbps), with the least message_ns and the largest gbps of the links,

and the last one, which its target needs, arrives the least latency later. Out of ranks the same: r must send every
chunk that it alone has and others want, and of each sum that others want, of which it has a part, that part or the
whole. For one rank this is the bound of its port.

Example: two ranks on one wire, 100 ns a message, 1 byte/ns, and 1,000 bytes each for the other: 2,200 ns.
"""

from __future__ import annotations

import math

import numpy as np

from loadmaster.models.collective.bounds.network import Network

_HAIR_NS = 1e-3


def shared_wires_ns(network: Network) -> int:
    """The best of these bounds, over all resources, into ranks and out of them."""
    alone = network.sources & (network.sources.sum(axis=1, keepdims=True) == 1)
    wanted_elsewhere = network.targets.sum(axis=1, keepdims=True) > network.targets
    sums = network.reduces[:, None]
    receives = network.targets & np.where(sums, ~alone, ~network.sources)
    sends = wanted_elsewhere & np.where(sums, network.sources, alone)
    topology = network.topology
    used, found = set(network.used_links), 0
    for moved, links_of in ((receives, topology.in_links), (sends, topology.out_links)):
        bytes_of = network.size_bytes @ moved
        held: dict[int, list[int]] = {}
        for rank in np.flatnonzero(bytes_of).tolist():
            resources = [topology.links[k].resources for k in links_of[rank] if k in used]
            for resource in set(resources[0]).intersection(*resources[1:]) if resources else ():
                held.setdefault(resource, []).append(rank)
        for ranks in held.values():
            links = [topology.links[k] for rank in ranks for k in links_of[rank] if k in used]
            busy_ns: float = len(ranks) * min(k.message_ns for k in links)
            busy_ns += int(bytes_of[ranks].sum()) / max(k.gbps for k in links)
            found = max(found, math.ceil(busy_ns - _HAIR_NS) + min(k.latency_ns for k in links))
    return found
