"""Small topologies for tests, written out plainly."""

from __future__ import annotations

from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.topology import Link, Topology

EVEN: tuple[Collective, ...] = (
    "allgather",
    "reduce_scatter",
    "allreduce",
    "alltoall",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
)
"""Those that cut every rank's data alike."""


def ring(count: int, *, latency_ns: int = 0, message_ns: int = 100, gbps: float = 1.0) -> Topology:
    """One node; a wire each way between neighbours."""
    ends = [(r, (r + step) % count) for r in range(count) for step in ((1,) if count == 2 else (1, -1))]
    links = tuple(Link(a, b, latency_ns, message_ns, gbps, (k,)) for k, (a, b) in enumerate(ends))
    return Topology(f"ring {count}", (0,) * count, links, tuple(f"wire {a}->{b}" for a, b in ends))


def switched(
    nodes: int, ranks: int, *, nic: bool = True, latency_ns: int = 0, message_ns: int = 100, gbps: float = 8.0
) -> Topology:
    """Nodes of some ranks around a switch; rank i of a node has its own NIC to rank i of every other, 8 times slower.

    Resources: per rank egress port, ingress port, NIC out, NIC in.
    """
    total = nodes * ranks
    names = tuple(f"{what} {r}" for what in ("egress", "ingress", "nic out", "nic in") for r in range(total))
    links = []
    for a in range(total):
        for b in range(total):
            if a == b:
                continue
            if a // ranks == b // ranks:
                links.append(Link(a, b, latency_ns, message_ns, gbps, (a, total + b), a // ranks))
            elif nic and a % ranks == b % ranks:
                links.append(Link(a, b, 2 * latency_ns, 2 * message_ns, gbps / 8, (2 * total + a, 3 * total + b)))
    around = tuple(tuple(range(n * ranks, (n + 1) * ranks)) for n in range(nodes))
    return Topology(f"switched {nodes}x{ranks}", tuple(r // ranks for r in range(total)), tuple(links), names, around)


def problem(topology: Topology, collective: Collective, size_bytes: int, **more: object) -> CollectiveProblem:
    """A problem of one size."""
    return CollectiveProblem(collective, topology, collective, (size_bytes,), **more)  # type: ignore[arg-type]
