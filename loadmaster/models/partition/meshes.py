"""Meshes as people write them: ``2x4``, with a rate and a latency for each axis, or a topology that says both."""

from __future__ import annotations

import math

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import Axis
from loadmaster.models.topologies.presets import catalogue, preset
from loadmaster.models.topologies.rings import Ring, rings
from loadmaster.models.topologies.topology import Topology

# What one GPU receives from its peers of one host over NVSwitch, and what a collective takes beside its bytes.
GBPS, LATENCY_US = 350.0, 20.0
_MOST_AXES = 4
# The command line's names of the three.
MESH_FLAGS = ("--mesh", "--gbps", "--latency-us")


def mesh(
    text: str,
    *,
    gbps: str | None = None,
    latency_us: str | None = None,
    topology: str | Topology | None = None,
    fields: tuple[str, str, str] = ("mesh", "gbps", "latency_us"),
) -> tuple[Axis, ...]:
    """The axes of a mesh.

    Args:
        text: workers along each axis: ``8``, ``2x4``.
        gbps, latency_us: a number for each axis, with commas between, or one for all.
        topology: whose links say what is not given of these: the name of one, or one of your own. Hosts come first.
        fields: what errors call the three.

    Raises:
        InputError: no such mesh, not one number for each axis, or a topology of other ranks.
    """
    sizes = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(sizes) > _MOST_AXES or min(sizes) < 2:
        raise InputError(fields[0], text, "is no mesh", f"Give 1 to {_MOST_AXES} axes of 2 or more, as in 2x4.")
    offered = [] if topology is None else _rings(topology, sizes, fields[0])
    rates = _each(gbps, fields[1], [ring.gbps for ring in offered] or [GBPS] * len(sizes), positive=True)
    of_links = [LATENCY_US + ring.latency_us for ring in offered] or [LATENCY_US] * len(sizes)
    latencies = _each(latency_us, fields[2], of_links)
    return tuple(
        Axis(f"axis{n}", size, rate, latency)
        for n, (size, rate, latency) in enumerate(zip(sizes, rates, latencies, strict=True))
    )


def _rings(given: str | Topology, sizes: list[int], field: str) -> list[Ring]:
    """Of a named topology with as many hosts as the mesh has, or of one host's first GPUs."""
    count = math.prod(sizes)
    if isinstance(given, str):
        of_host = next((entry.ranks_per_node for entry in catalogue() if entry.name == given), 1)
        given = preset(given, max(1, count // of_host))
    if count != given.rank_count and count > len(given.ranks_of_node[given.node_of[0]]):
        remedy = f"Give a mesh of {given.rank_count}, the slowest links first, or of fewer on one host."
        raise InputError(field, "x".join(map(str, sizes)), f"is not of the {given.rank_count} of {given.name}", remedy)
    return rings(given, sizes)


def _each(text: str | None, field: str, known: list[float], *, positive: bool = False) -> list[float]:
    if text is None:
        return known
    count = len(known)
    remedy = f"Give one number, or {count} with commas between."
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(field, text, "is no number", remedy) from None
    if len(given) not in (1, count):
        raise InputError(field, text, f"is for {len(given)} axes, the mesh has {count}", remedy)
    if not all(math.isfinite(value) and value >= 0 for value in given) or (positive and min(given) == 0):
        raise InputError(field, text, "is no rate or time", remedy)
    return given * (count // len(given))
