"""Scenarios of the profiler on running ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from loadmaster.errors import InputError
from loadmaster.executor.collective.probe import probe
from loadmaster.models.topologies.networks import read_network


def measures(rank):
    """All ranks come to the same topology, which reads as one; and the report says what is hidden from a CPU."""
    n = dist.get_world_size()
    probed = probe(dist.group.WORLD, torch.device("cpu"), largest_bytes=1 << 24, repeats=2)
    topology = read_network(probed.topology)
    assert topology.node_of == (0,) * n and len(topology.links) == n * (n - 1)
    # A machine that copies memory: neither slower than a disk nor faster than its caches.
    assert all(0.01 < cost.gbps < 1000 for cost in probed.costs.values())
    assert all(cost.latency_ns + cost.message_ns > 500 for cost in probed.costs.values())
    assert "NVLink and PCIe: no rank has a GPU" in probed.report
    assert f"  {n - 1}: host " in probed.report
    said = [None] * n
    dist.all_gather_object(said, probed.topology)
    assert all(one == probed.topology for one in said)


def refusals_of_probes(rank):
    with pytest.raises(InputError, match="too small to tell a bandwidth"):
        probe(dist.group.WORLD, torch.device("cpu"), largest_bytes=1000)


SCENARIOS = (measures, refusals_of_probes)
