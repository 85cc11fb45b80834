"""Rings over links: by hand where ways are shared, and where there is none."""

from __future__ import annotations

import pytest

from loadmaster.errors import InputError
from loadmaster.models.topologies.rings import rings
from loadmaster.models.topologies.topology import Link, Topology

RESOURCES = ("out 0", "out 1", "in 0", "in 1", "a", "b", "c", "d")


def hosts(*, joined: bool = True) -> Topology:
    """Two of two ranks, a wire of 100 GB/s within; between them one NIC a host, 10 GB/s each way."""
    within = [Link(a, b, 0, 500, 100.0, (4 + n,)) for n, (a, b) in enumerate(((0, 1), (1, 0), (2, 3), (3, 2)))]
    out, back = (0, 3), (1, 2)
    across = [Link(a, b, 2000, 0, 10.0, out) for a in (0, 1) for b in (2, 3)]
    across += [Link(b, a, 2000, 0, 10.0, back) for a in (0, 1) for b in (2, 3)]
    return Topology("hosts", (0, 0, 1, 1), tuple(within + across * joined), RESOURCES)


def test_what_is_shared_is_slower() -> None:
    between, within = rings(hosts(), (2, 2))
    assert (between.gbps, between.latency_us) == (5.0, 2.0)
    assert (within.gbps, within.latency_us) == (100.0, 0.5)


def test_one_ring_over_all_crosses_once_each_way() -> None:
    (ring,) = rings(hosts(), (4,))
    assert ring.gbps == pytest.approx(10.0)
    assert ring.latency_us == 3 * 2.0


def test_a_way_over_another_rank_loads_its_links() -> None:
    """A line of three: the way back from the last to the first is over the middle."""
    ways = enumerate(((0, 1), (1, 0), (1, 2), (2, 1)))
    line = Topology("line", (0, 0, 0), tuple(Link(a, b, 0, 100, 8.0, (n,)) for n, (a, b) in ways), tuple("abcd"))
    (ring,) = rings(line, (3,))
    assert (ring.gbps, ring.latency_us) == (8.0, 2 * 0.2)


def test_ranks_that_nothing_joins_are_refused() -> None:
    with pytest.raises(InputError, match=r"topology.*no way from rank 0 to rank 2"):
        rings(hosts(joined=False), (2, 2))
