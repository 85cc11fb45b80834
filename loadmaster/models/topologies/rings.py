"""Rings over the links of a topology: the rates that the axes of a mesh of its ranks offer to collectives.

Rank r of a topology has the r-th place of the mesh, the last axis fastest, so that hosts come first. Along an axis the
ranks of every group send to their neighbours in a ring, all groups and all ranks at the same time. Each message takes
the way that is fastest alone. A byte from everybody takes as long as the resource with the most to carry:

    us a byte = max over resources of sum over the messages that it carries of 1 / gbps

A ring of k ranks does an all-gather in k - 1 such steps, and each adds the latency of the slowest way.

Example: two hosts of two ranks, one NIC each that both share, 10 GB/s. On a mesh of 2 x 2 the first axis has two
groups, so that each NIC carries two messages each way at a time: 5 GB/s.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.errors import InputError
from loadmaster.models.topologies.topology import Link, Topology

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class Ring:
    """Ring along an axis of a mesh: each rank receives at ``gbps`` while all receive; a round adds ``latency_us``."""

    gbps: float
    latency_us: float


def rings(topology: Topology, sizes: Sequence[int]) -> list[Ring]:
    """Rate the ring along every axis of a mesh of the first ranks. ``InputError``: a rank cannot reach the next."""
    ranks = np.arange(math.prod(sizes)).reshape(sizes)
    return [_ring(topology, np.moveaxis(ranks, axis, -1).reshape(-1, size)) for axis, size in enumerate(sizes)]


def _ring(topology: Topology, groups: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Ring:
    ns_of: defaultdict[int, float] = defaultdict(float)
    slowest_ns = 0.0
    for group in groups.tolist():
        for source, target in zip(group, group[1:] + group[:1], strict=True):
            way = _fastest(topology, source, target)
            slowest_ns = max(slowest_ns, sum(link.message_ns + link.latency_ns for link in way))
            for link in way:
                for resource in link.resources:
                    ns_of[resource] += 1 / link.gbps
    return Ring(1 / max(ns_of.values()), (groups.shape[1] - 1) * slowest_ns / _NS_PER_US)


def _fastest(topology: Topology, source: int, target: int) -> list[Link]:
    reached: dict[int, Link | None] = {}
    waiting: list[tuple[float, int, int | None]] = [(0.0, source, None)]
    while waiting:
        ns, rank, index = heapq.heappop(waiting)
        if rank in reached:
            continue
        reached[rank] = None if index is None else topology.links[index]
        if rank == target:
            break
        for out in topology.out_links[rank]:
            link = topology.links[out]
            heapq.heappush(waiting, (ns + 1 / link.gbps, link.target, out))
    found: list[Link] = []
    if target not in reached:
        remedy = "Join them by links, or give the rates of the axes."
        raise InputError("topology", topology.name, f"has no way from rank {source} to rank {target}", remedy)
    while (last := reached[target]) is not None:
        found.append(last)
        target = last.source
    return found
