"""Meshes as people write them: ``2x4``, with a rate and a latency for each axis."""

from __future__ import annotations

import math

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import Axis

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
    fields: tuple[str, str, str] = ("mesh", "gbps", "latency_us"),
) -> tuple[Axis, ...]:
    """The axes of a mesh.

    Args:
        text: workers along each axis: ``8``, ``2x4``.
        gbps, latency_us: a number for each axis, with commas between, or one for all.
        fields: what errors call the three.

    Raises:
        InputError: no such mesh, or not one number for each axis.
    """
    sizes = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(sizes) > _MOST_AXES or min(sizes) < 2:
        raise InputError(fields[0], text, "is no mesh", f"Give 1 to {_MOST_AXES} axes of 2 or more, as in 2x4.")
    rates = _each(gbps, fields[1], len(sizes), GBPS)
    latencies = _each(latency_us, fields[2], len(sizes), LATENCY_US)
    return tuple(
        Axis(f"axis{n}", size, rate, latency)
        for n, (size, rate, latency) in enumerate(zip(sizes, rates, latencies, strict=True))
    )


def _each(text: str | None, field: str, count: int, default: float) -> list[float]:
    if text is None:
        return [default] * count
    remedy = f"Give one number, or {count} with commas between."
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(field, text, "is no number", remedy) from None
    if len(given) not in (1, count):
        raise InputError(field, text, f"is for {len(given)} axes, the mesh has {count}", remedy)
    if not all(math.isfinite(value) and value >= 0 for value in given) or (default == GBPS and min(given) == 0):
        raise InputError(field, text, "is no rate or time", remedy)
    return given * (count // len(given))
