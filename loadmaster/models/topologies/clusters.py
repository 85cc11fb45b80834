"""Topologies of clusters of equal nodes: wires or a switch inside a node, NICs between nodes.

Resources: a wire of its own for each point-to-point link; for a way through a switch, the egress port of the source
and the ingress port of the target; for a way between nodes, the NIC of the source (out) and that of the target (in).
GPUs that share a NIC share its two resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.errors import InputError
from loadmaster.models.topologies.topology import Link, Topology

LARGEST_NODES = 16

# Pairs of GPUs of a DGX-1 (and of an Azure NDv2) with two NVLinks, and those with one. Numbering and pairs as in the
# published profiles' node (TACCL repository, taccl/topologies/generic.py); [Shah23], figure 3.2.
DGX1_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
DGX1_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))


@dataclass(frozen=True)
class Cost:
    """Cost of a class of links; see :class:`loadmaster.models.topologies.topology.Link`."""

    latency_ns: int
    message_ns: int
    gbps: float


@dataclass(frozen=True)
class NodeWiring:
    """Wiring of one node.

    Attributes:
        wires: (local source, local target) -> cost of the link between them, each with a wire of its own.
        port: cost of the ways through the node's switch, which joins all its GPUs; None: it has no switch.
        nics: for each GPU, the NIC of the node that serves it.
    """

    nics: tuple[int, ...]
    wires: Mapping[tuple[int, int], Cost]
    port: Cost | None = None


def cluster(name: str, nodes: int, wiring: NodeWiring, network: Cost | None, *, rails: bool = False) -> Topology:
    """Build the topology of equal nodes and the network between them.

    Args:
        network: cost of the links between nodes; one node needs none.
        rails: a GPU sends to the GPUs of its own number only; otherwise to every GPU of every other node.

    Raises:
        InputError: not 1 to 16 nodes.
    """
    if not 1 <= nodes <= LARGEST_NODES:
        raise InputError("nodes", nodes, f"is not 1 to {LARGEST_NODES}", "Give a number of nodes in this range.")
    per_node = len(wiring.nics)
    total = nodes * per_node
    resources: dict[str, int] = {}
    links: list[Link] = []

    def add(source: int, target: int, cost: Cost, held: Sequence[str], switch: int | None = None) -> None:
        indices = tuple(sorted(resources.setdefault(what, len(resources)) for what in held))
        links.append(Link(source, target, cost.latency_ns, cost.message_ns, cost.gbps, indices, switch))

    for source in range(total):
        node, i = divmod(source, per_node)
        for target in range(total):
            there, j = divmod(target, per_node)
            if source == target:
                continue
            if node != there:
                assert network is not None
                if i == j or not rails:
                    add(
                        source,
                        target,
                        network,
                        (f"nic {node}.{wiring.nics[i]} out", f"nic {there}.{wiring.nics[j]} in"),
                    )
            elif wiring.port is not None:
                add(source, target, wiring.port, (f"port {source} out", f"port {target} in"), node)
            elif (i, j) in wiring.wires:
                add(source, target, wiring.wires[i, j], (f"wire {source}->{target}",))
    switches = [tuple(range(n * per_node, (n + 1) * per_node)) for n in range(nodes)] if wiring.port else []
    return Topology(name, tuple(r // per_node for r in range(total)), tuple(links), tuple(resources), tuple(switches))


def dgx1_wires(double: Cost, single: Cost) -> dict[tuple[int, int], Cost]:
    """NVLinks of a DGX-1, both ways: ``double`` where a pair has two, ``single`` where it has one."""
    found: dict[tuple[int, int], Cost] = {}
    for pairs, cost in ((DGX1_DOUBLE, double), (DGX1_SINGLE, single)):
        for a, b in pairs:
            found[a, b] = found[b, a] = cost
    return found
