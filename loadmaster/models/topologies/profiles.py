"""Published topology profiles: JSON files with the costs of one node's links and of the network between nodes.

A profile gives the cost of a chunk of one size: alpha, and beta on top. It is read as the serial alpha-beta cost: a
link is busy for message_ns = alpha and for size / gbps, with gbps such that a chunk of the profile's size takes beta.
So that chunk costs alpha + beta to the nanosecond (rounded up).

The node of a profile follows from the file: two betas are a DGX-1 graph (pairs with two NVLinks, pairs with one), one
beta is a switch around all GPUs, and matrices ``links``, ``betas`` ([target][source]) are wires as given.

Source: [Shah23], section 5.3 and Table 5.1; its repository's INPUT_GUIDE.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from loadmaster.errors import InputError
from loadmaster.models.documents import Document, load_document, parse
from loadmaster.models.fields import READING, Bounds
from loadmaster.models.shipped import Shipped
from loadmaster.models.topologies.presets import Cost, NodeWiring, cluster, dgx1_wires
from loadmaster.models.topologies.topology import Topology

_SHIPPED = Shipped("loadmaster.models.topologies", "topologies", "topology_file", "profile")
_SIZE = re.compile(r"(\d+)(KB|MB)$")
_UNIT_BYTES = {"KB": 2**10, "MB": 2**20}
# Published profile -> one unit of its costs, ns. The files do not state it: their solver rounds to whole units, so they
# are scaled until little is lost. Alpha is 0.3 us in all of them.
_PUBLISHED_UNIT_NS = {"DGX2_1MB": 1000, "NDv2_1MB": 1000, "NDv2_32KB": 100, "DGX2_1KB": 10, "NDv2_1KB": 10}

_Cost = Annotated[float, Bounds(ge=0)]
_Matrix = list[list[float]]


@dataclass(frozen=True, kw_only=True)
class _Profile:
    """Fields of a profile file. ``chunk_bytes`` and ``unit_ns`` are Loadmaster's, for profiles of other names."""

    __pydantic_config__: ClassVar = READING

    name: str
    gpus_per_node: Annotated[int, Bounds(ge=1, le=128)]
    alpha: _Cost
    nics_per_node: Annotated[int, Bounds(ge=1)] = 1
    remote_alpha: _Cost | None = None
    remote_beta: float | None = None
    remote_invbw: float | None = None
    node_betas_list: list[float] | None = None
    node_invbws_list: list[float] | None = None
    links: list[list[int]] | None = None
    betas: _Matrix | None = None
    invbws: _Matrix | None = None
    chunk_bytes: Annotated[int, Bounds(ge=1)] | None = None
    unit_ns: Annotated[float, Bounds(gt=0)] | None = None


def profile_names() -> list[str]:
    """Names of the shipped profiles (``topo-ndv2-1MB``, ...), ascending."""
    return _SHIPPED.names()


def published_profile(name: str) -> Document:
    """Read a shipped profile, as published. Raises InputError: there is no profile of this name."""
    return _SHIPPED.read(name)


def load_profile(source: Document | str | Path, nodes: int) -> Topology:
    """Build the topology of some nodes of a profile, from its file or its mapping. ``InputError`` names the field that
    is unknown or missing, or whose cost is invalid."""
    profile = parse(_Profile, load_document(source))
    chunk_bytes, unit_ns = _scale(profile)

    def cost(field: str, alpha: float, beta: float) -> Cost:
        if beta <= 0:
            raise InputError(field, beta, "is no cost", "Give what a chunk costs on top of alpha, more than 0.")
        return Cost(0, round(alpha * unit_ns), chunk_bytes / (beta * unit_ns))

    per_node = profile.gpus_per_node
    if per_node % profile.nics_per_node:
        remedy = f"Give a number of NICs that divides {per_node} GPUs."
        raise InputError("nics_per_node", profile.nics_per_node, "does not divide the GPUs", remedy)
    nics = tuple(i * profile.nics_per_node // per_node for i in range(per_node))
    network = None
    if nodes > 1:
        if profile.remote_alpha is None or profile.remote_beta is None:
            field = "remote_alpha" if profile.remote_alpha is None else "remote_beta"
            raise InputError(field, None, "is missing", "Add it, or plan for one node.")
        network = cost("remote_beta", profile.remote_alpha, profile.remote_beta)
    name = profile.name if nodes == 1 else f"{profile.name} x {nodes}"
    if profile.links is not None or profile.betas is not None:
        wires = {}
        for target, source_rank, beta in _matrix_links(profile):
            wires[source_rank, target] = cost(f"betas[{target}][{source_rank}]", profile.alpha, beta)
        return cluster(name, nodes, NodeWiring(nics, wires), network)
    betas = profile.node_betas_list
    if betas is None:
        raise InputError("node_betas_list", None, "is missing", "Add it, or the matrices links and betas.")
    of_node = [cost(f"node_betas_list[{index}]", profile.alpha, beta) for index, beta in enumerate(betas)]
    if len(of_node) == 1:
        return cluster(name, nodes, NodeWiring(nics, {}, of_node[0]), network)
    if len(of_node) == 2 and per_node == 8:
        return cluster(name, nodes, NodeWiring(nics, dgx1_wires(*of_node)), network)
    raise InputError(
        "node_betas_list",
        betas,
        f"fits no known node of {per_node} GPUs",
        "Give one beta (a switch), two for the 8 GPUs of a DGX-1, or the matrices links and betas.",
    )


def _scale(profile: _Profile) -> tuple[int, float]:
    """Bytes of the profile's chunk, and nanoseconds of its unit."""
    size = _SIZE.search(profile.name)
    chunk_bytes = profile.chunk_bytes or (size and int(size[1]) * _UNIT_BYTES[size[2]])
    if not chunk_bytes:
        remedy = "Add it, or end the name with the chunk's size (_1MB, _32KB)."
        raise InputError("chunk_bytes", None, "is missing, and the name does not say it", remedy)
    unit_ns = profile.unit_ns or _PUBLISHED_UNIT_NS.get(profile.name)
    if unit_ns is None:
        remedy = "Add it: nanoseconds of one unit of the costs (1000 if they are in us)."
        raise InputError("unit_ns", None, "is missing, and this is no published profile", remedy)
    return chunk_bytes, unit_ns


def _matrix_links(profile: _Profile) -> list[tuple[int, int, float]]:
    """Links of a profile with matrices: (target, source, beta) of each."""
    count = profile.gpus_per_node
    for field, matrix in (("links", profile.links), ("betas", profile.betas)):
        if matrix is None or len(matrix) != count or any(len(row) != count for row in matrix):
            found = None if matrix is None else [len(row) for row in matrix]
            raise InputError(
                field, found, f"is no matrix of {count} x {count}", "Give a row per GPU, an entry per GPU."
            )
    assert profile.links is not None and profile.betas is not None
    found_links = []
    for target, row in enumerate(profile.links):
        for source, present in enumerate(row):
            if present not in (0, 1):
                remedy = "Give 0 or 1; more than one link between two GPUs is a smaller beta."
                raise InputError(f"links[{target}][{source}]", present, "is not 0 or 1", remedy)
            if present:
                found_links.append((target, source, profile.betas[target][source]))
    return found_links
