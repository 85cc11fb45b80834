"""Named topologies: machines by their published or measured costs, and rings, tori and fat trees.

| name | where its costs are from |
| --- | --- |
| ndv2, dgx1, dgx2 | [Shah23], Table 5.1: alpha and beta measured on Azure NDv2 and DGX-2 |
| hgx-h200 | NVLink bandwidth measured on eight H200s (below); NIC bandwidth from its data sheet; latencies assumed |
| hgx-h100 | as hgx-h200: the same NVSwitches and NICs |
| ring, torus | NVLink of the H200 as wires between neighbours |
| fat-tree | NIC of the H200 under two levels of switches |

The published machines have the serial alpha-beta cost that was fitted to them (message_ns = alpha); the others have
the pipelined form (latency_ns): what is on the way does not keep a port busy. The profiler measures a real machine.

Topologies of clusters of equal nodes: wires or a switch inside a node, NICs between nodes. Resources: a wire of its own
for each point-to-point link; for a way through a switch, the egress port of the source and the ingress port of the
target; for a way between nodes, the NIC of the source (out) and that of the target (in). GPUs that share a NIC share
its two resources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Wiring of one node: for each GPU, which of the ``nics`` serves it. ``wires``: (local source, local target) ->
    cost of the link between them, each with a wire of its own. ``port``: cost of the ways through the node's switch,
    which joins all its GPUs; None: it has no switch."""

    nics: tuple[int, ...]
    wires: Mapping[tuple[int, int], Cost]
    port: Cost | None = None


def cluster(name: str, nodes: int, wiring: NodeWiring, network: Cost | None, *, rails: bool = False) -> Topology:
    """Build the topology of equal nodes and the ``network`` between them (one node needs none). ``rails``: a GPU sends
    to the GPUs of its own number only; otherwise to every GPU of every other node. ``InputError``: not 1 to 16
    nodes."""
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


_MB = 2**20
# Table 5.1, us and us/MB: NVLink of an NDv2 is of a pair with one link; a pair with two has twice the bandwidth.
_NVLINK_ALPHA_NS = 700
_NDV2_NVLINK = Cost(0, _NVLINK_ALPHA_NS, _MB / 46e3)
_NDV2_TWO_NVLINKS = Cost(0, _NVLINK_ALPHA_NS, _MB / 23e3)
_DGX2_NVLINK = Cost(0, _NVLINK_ALPHA_NS, _MB / 8e3)
_INFINIBAND = Cost(0, 1700, _MB / 106e3)

# Measured on HGX H200 (torch 2.11, 2026-11-20): a GPU writing to a peer's memory moves 390 GB/s; the data sheet says
# 450 GB/s each way, for the H100 too. Latency: assumed, about the time in which a flag arrives there.
_NVLINK4 = Cost(1_000, 0, 390.0)
# Data sheet of the ConnectX-7: 400 Gb/s each way. Latency: assumed.
_CONNECTX7 = Cost(5_000, 0, 50.0)

# A leaf of a fat tree: so many ranks below it, as many uplinks above.
_LEAF_RANKS = 8


@dataclass(frozen=True)
class Preset:
    """Entry of the catalogue of topologies. ``nodes``: the numbers of nodes that it comes with, ascending. A ring and a
    torus have one rank per node: their ``nodes`` count GPUs."""

    name: str
    title: str
    ranks_per_node: int
    nodes: tuple[int, ...]
    build: Callable[[int], Topology]


def catalogue() -> tuple[Preset, ...]:
    """List all named topologies, machines first."""
    return _CATALOGUE


def preset(name: str, nodes: int = 1) -> Topology:
    """Build a named topology with so many nodes; ``InputError`` if there is none, or not with so many."""
    for entry in _CATALOGUE:
        if entry.name == name:
            if nodes not in entry.nodes:
                few, many = entry.nodes[0], entry.nodes[-1]
                between = "" if len(entry.nodes) == many - few + 1 else ", no prime number"
                raise InputError(
                    "nodes", nodes, f"{name} does not come with so many", f"Give {few} to {many}{between}."
                )
            return entry.build(nodes)
    names = ", ".join(entry.name for entry in _CATALOGUE)
    raise InputError("topology", name, "no such topology", f"Choose one of: {names}.")


def ndv2(nodes: int) -> Topology:
    """Azure NDv2: eight V100s wired as in a DGX-1, one NIC that they share."""
    wires = dgx1_wires(_NDV2_TWO_NVLINKS, _NDV2_NVLINK)
    return cluster(f"ndv2 x {nodes}", nodes, NodeWiring((0,) * 8, wires), _INFINIBAND)


def dgx1(nodes: int) -> Topology:
    """NVIDIA DGX-1: eight V100s, a NIC for each pair of them."""
    wires = dgx1_wires(_NDV2_TWO_NVLINKS, _NDV2_NVLINK)
    return cluster(f"dgx1 x {nodes}", nodes, NodeWiring(tuple(i // 2 for i in range(8)), wires), _INFINIBAND)


def dgx2(nodes: int) -> Topology:
    """NVIDIA DGX-2: sixteen V100s around a switch, a NIC for each pair of them."""
    wiring = NodeWiring(tuple(i // 2 for i in range(16)), {}, _DGX2_NVLINK)
    return cluster(f"dgx2 x {nodes}", nodes, wiring, _INFINIBAND)


def hgx(name: str, nodes: int) -> Topology:
    """HGX: eight H100s or H200s around a switch, a NIC each, which reaches GPUs of the same number only (its rail)."""
    wiring = NodeWiring(tuple(range(8)), {}, _NVLINK4)
    return cluster(f"{name} x {nodes}", nodes, wiring, _CONNECTX7, rails=True)


def ring(ranks: int, cost: Cost = _NVLINK4) -> Topology:
    """Build a ring of ranks, with a wire each way between neighbours."""
    return torus((ranks,), cost)


def torus(sides: tuple[int, ...], cost: Cost = _NVLINK4) -> Topology:
    """Build a torus of ranks, with a wire each way between neighbours; the last side runs fastest. ``InputError``: a
    side is not positive, or there is only one rank."""
    count = 1
    for side in sides:
        if side < 1:
            raise InputError("sides", list(sides), "is no grid", "Give sides of at least 1.")
        count *= side
    if count < 2:
        raise InputError("sides", list(sides), "has only one rank", "Give at least two ranks.")
    ends: dict[tuple[int, int], None] = {}
    for rank in range(count):
        stride = 1
        for side in reversed(sides):
            place = rank // stride % side
            for step in (1, -1):
                neighbour = rank + ((place + step) % side - place) * stride
                if neighbour != rank:
                    ends[rank, neighbour] = None
            stride *= side
    links = tuple(Link(a, b, cost.latency_ns, cost.message_ns, cost.gbps, (k,)) for k, (a, b) in enumerate(ends))
    name = f"ring {count}" if len(sides) == 1 else f"torus {' x '.join(map(str, sides))}"
    return Topology(name, (0,) * count, links, tuple(f"wire {a}->{b}" for a, b in ends))


def fat_tree(ranks: int, leaf_ranks: int = _LEAF_RANKS, uplinks: int = _LEAF_RANKS) -> Topology:
    """Build a fat tree: ranks with a NIC each below leaf switches, which uplinks join; every rank is a node of its own.

    Routes are fixed by the target, as in InfiniBand: it is reached through uplink ``target mod uplinks`` of both
    leaves. Fewer uplinks than ranks of a leaf make an oversubscribed tree. ``InputError``: fewer than two ranks, or
    leaves without ranks or uplinks.
    """
    for field, value, least in (("ranks", ranks, 2), ("leaf_ranks", leaf_ranks, 1), ("uplinks", uplinks, 1)):
        if value < least:
            raise InputError(field, value, f"is less than {least}", f"Give at least {least}.")
    cost, resources = _CONNECTX7, dict[str, int]()
    links = []
    for source in range(ranks):
        for target in range(ranks):
            if source == target:
                continue
            held = [f"nic {source} out", f"nic {target} in"]
            here, there = source // leaf_ranks, target // leaf_ranks
            if here != there:
                through = target % uplinks
                held += [f"leaf {here} up {through}", f"leaf {there} down {through}"]
            indices = tuple(sorted(resources.setdefault(what, len(resources)) for what in held))
            links.append(Link(source, target, cost.latency_ns, cost.message_ns, cost.gbps, indices))
    return Topology(f"fat tree {ranks}", tuple(range(ranks)), tuple(links), tuple(resources))


def _squarest(ranks: int) -> tuple[int, int]:
    """Sides of the torus of so many ranks that is nearest to a square."""
    short = max(side for side in range(1, ranks + 1) if side * side <= ranks and ranks % side == 0)
    return short, ranks // short


_MACHINE_NODES = tuple(range(1, LARGEST_NODES + 1))
_CATALOGUE = (
    Preset("ndv2", "Azure NDv2: 8 V100, DGX-1 NVLinks, one NIC", 8, _MACHINE_NODES, ndv2),
    Preset("dgx1", "NVIDIA DGX-1: 8 V100, 4 NICs", 8, _MACHINE_NODES, dgx1),
    Preset("dgx2", "NVIDIA DGX-2: 16 V100 around a switch, 8 NICs", 16, _MACHINE_NODES, dgx2),
    Preset(
        "hgx-h100", "HGX H100: 8 H100 around a switch, 8 NICs on rails", 8, _MACHINE_NODES, lambda n: hgx("hgx-h100", n)
    ),
    Preset(
        "hgx-h200", "HGX H200: 8 H200 around a switch, 8 NICs on rails", 8, _MACHINE_NODES, lambda n: hgx("hgx-h200", n)
    ),
    Preset("ring", "GPUs in a ring", 1, tuple(range(2, 129)), ring),
    Preset(
        "torus",
        "GPUs on a two-dimensional torus, as square as their number allows",
        1,
        tuple(n for n in range(4, 129) if _squarest(n)[0] > 1),
        lambda n: torus(_squarest(n)),
    ),
    Preset("fat-tree", "Servers of one GPU and one NIC below leaf switches of 8", 1, tuple(range(2, 129)), fat_tree),
)
