"""Broadcast by relays: never above the best schedule, which is found by trying all, and equal to it on some."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from loadmaster.models.collective.bounds.broadcasts import relaying_ns
from loadmaster.models.collective.bounds.network import Network
from loadmaster.models.collective.collectives import instance_of
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.topologies.presets import preset
from loadmaster.models.topologies.topology import Link, Topology
from tests.models.collective.optimal_schedules import Search
from tests.models.collective.tiny import problem


def star(count: int, latency_ns: int, *, ports: bool) -> Topology:
    """All to all over one port each way, or over a wire for each link; every rank a node of its own."""
    links = []
    for a, b in product(range(count), repeat=2):
        if a != b:
            links.append(Link(a, b, latency_ns, 0, 1.0, (a, count + b) if ports else (len(links),)))
    return Topology("star", tuple(range(count)), tuple(links), tuple(map(str, range(max(2 * count, len(links))))))


def pairs(nodes: int, latency_ns: int, local_ns: int) -> Topology:
    """Nodes of two, a wire between them, and a NIC of 1 GB/s for each to its like in other nodes."""
    links: list[Link] = []
    count = 2 * nodes
    for a, b in product(range(count), repeat=2):
        if a // 2 == b // 2 and a != b:
            links.append(Link(a, b, local_ns, 0, 4.0, (2 * count + a,)))
        elif a % 2 == b % 2 and a != b:
            links.append(Link(a, b, latency_ns, 0, 1.0, (a, count + b)))
    return Topology("pairs", tuple(r // 2 for r in range(count)), tuple(links), tuple(map(str, range(3 * count))))


def relayed_ns(instance: Instance) -> int:
    chunks = np.ones(len(instance.chunks), dtype=bool)
    return relaying_ns(Network(instance), 0, chunks)


def broadcast(topology: Topology, size_bytes: int, count: int) -> Instance:
    everyone = tuple(range(topology.rank_count))
    return Instance(topology, tuple(Chunk(size_bytes, (0,), everyone) for _ in range(count)))


@pytest.mark.slow
def test_never_above_the_best_schedule() -> None:
    machines = [star(n, latency, ports=p) for n in (3, 4) for latency in (0, 1, 3, 10, 30) for p in (True, False)]
    machines += [pairs(2, latency, local) for latency in (0, 3, 10) for local in (0, 1, 8, 40)]
    for topology, size_bytes, count in product(machines, (1, 10, 20), (1, 2, 3)):
        found = broadcast(topology, size_bytes, count)
        search = Search(found, limit=3000)
        if search.best_ns is not None:
            assert relayed_ns(found) <= search.best_ns, (topology.name, size_bytes, count)


@pytest.mark.parametrize(("latency_ns", "chunks", "best_ns"), [(1, 1, 3), (1, 3, 5), (3, 2, 7), (3, 3, 8)])
def test_the_optimum_on_three_ranks_around_a_switch(latency_ns: int, chunks: int, best_ns: int) -> None:
    """The root sends for k steps; half of that is passed on by those that heard of it a latency later."""
    found = broadcast(star(3, latency_ns, ports=True), 1, chunks)
    assert relayed_ns(found) == best_ns == Search(found, limit=60_000).best_ns


def test_nodes_hear_nothing_from_one_another_for_two_latencies() -> None:
    """Sixteen nodes, 8 NICs of 50 GB/s each: the bytes, twice 5 us less what the root alone sends, and most of 1 us."""
    size_bytes = 1 << 30
    instance = instance_of(problem(preset("hgx-h200", 16), "broadcast", size_bytes, root=0), size_bytes, 1)
    found = relaying_ns(Network(instance, divisible=True), 0, np.array([True]))
    bytes_ns = size_bytes / 400
    assert bytes_ns + 2 * 5000 < found < bytes_ns + 2 * 5000 + 7 * 1001 / 8 + 1001
