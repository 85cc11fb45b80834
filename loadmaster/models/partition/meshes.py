"""Meshes as people write them: ``2x4``, with a rate and a latency for each axis, or a topology that says both. Where
GPUs are not equal, they say what each can do.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from loadmaster.errors import InputError
from loadmaster.models.partition.problem import LARGEST_RATIO, Axis
from loadmaster.models.topologies.presets import catalogue, preset
from loadmaster.models.topologies.rings import Ring, rings
from loadmaster.models.topologies.topology import Topology

logger = logging.getLogger(__name__)

# What one GPU receives from its peers of one host over NVSwitch, and what a collective takes apart from its bytes.
GBPS, LATENCY_US = 350.0, 20.0
_MOST_AXES = 4
_N = TypeVar("_N", int, float)
# Shares that are found for speeds let no GPU take longer than exact ones would, but for so much.
_CLOSE = 1.05
_MOST_UNITS = int(LARGEST_RATIO)


def mesh(
    text: str,
    *,
    gbps: str | None = None,
    latency_us: str | None = None,
    topology: str | Topology | None = None,
    speeds: str | None = None,
    weights: str | None = None,
    memory: str | None = None,
    called: Callable[[str], str] = str,
) -> tuple[Axis, ...]:
    """The axes of a mesh.

    Args:
        text: workers along each axis: ``8``, ``2x4``.
        gbps, latency_us: a number for each axis, with commas between, or one for all.
        topology: whose links say what is not given of these: the name of one, or one of your own. Hosts come first.
        speeds: how fast GPUs compute, compared with those whose times operators have: for each axis a number for each
            place on it, with commas between, or one for all of them: ``1x2,2,1,1``.
        weights: in the same way, whole numbers to which shares are proportional. None: small ones that balance speeds.
        memory: in the same way, how much GPUs have compared with each other: the budget is that of the largest.
        called: what errors call these.

    Raises:
        InputError: no such mesh, not one number for each axis or place, or a topology of other ranks.
    """
    sizes = [int(part) if part.isdecimal() else 0 for part in text.lower().split("x")]
    if len(sizes) > _MOST_AXES or min(sizes) < 2:
        raise InputError(called("mesh"), text, "is no mesh", f"Give 1 to {_MOST_AXES} axes of 2 or more, as in 2x4.")
    offered = [] if topology is None else _rings(topology, sizes, called("mesh"))
    rates = _each(gbps, called("gbps"), [ring.gbps for ring in offered] or [GBPS] * len(sizes), positive=True)
    of_links = [LATENCY_US + ring.latency_us for ring in offered] or [LATENCY_US] * len(sizes)
    latencies = _each(latency_us, called("latency_us"), of_links)
    fast = _places(speeds, called("speeds"), sizes, float)
    roomy = [tuple(part / max(of) for part in of) for of in _places(memory, called("memory"), sizes, float)]
    if weights is None:
        heavy = [_balanced(of, called("speeds")) for of in fast]
    else:
        heavy = _places(weights, called("weights"), sizes, int)
    return tuple(
        Axis(f"axis{n}", size, rate, latency, _unequal(heavy[n]), fast[n], _unequal(roomy[n]))
        for n, (size, rate, latency) in enumerate(zip(sizes, rates, latencies, strict=True))
    )


def _places(text: str | None, field: str, sizes: Sequence[int], number: Callable[[str], _N]) -> list[tuple[_N, ...]]:
    """Numbers for the places on each axis; none where all are equal."""
    if text is None:
        return [()] * len(sizes)
    shown = "x".join(",".join("1" for _ in range(size)) for size in sizes)
    remedy = f"Give {shown} for equal ones: axes with x between, places with commas, or one number for all of an axis."
    by_axis = text.lower().split("x")
    if len(by_axis) != len(sizes):
        raise InputError(field, text, f"is for {len(by_axis)} axes, the mesh has {len(sizes)}", remedy)
    found = []
    for n, (of_axis, size) in enumerate(zip(by_axis, sizes, strict=True)):
        try:
            given = tuple(number(part) for part in of_axis.split(","))
        except ValueError:
            what = "a whole number" if number is int else "a number"
            raise InputError(field, text, f"has something for axis {n} that is not {what}", remedy) from None
        if len(given) not in (1, size):
            raise InputError(field, text, f"is for {len(given)} GPUs on axis {n}, the mesh has {size}", remedy)
        least = 1 if number is int else 1 / LARGEST_RATIO
        if not all(least <= value <= LARGEST_RATIO for value in given):
            raise InputError(field, text, f"is not from {least:g} to {LARGEST_RATIO:g}", remedy)
        found.append(() if given == (1,) else given * (size // len(given)))
    return found


def _balanced(speeds: Sequence[float], field: str) -> tuple[int, ...]:
    """The smallest weights by which no GPU takes much longer than by exact shares."""
    if not speeds:
        return ()
    weights, fair = [1] * len(speeds), 1 / sum(speeds)
    while max(w / s for w, s in zip(weights, speeds, strict=True)) > _CLOSE * fair * sum(weights):
        if sum(weights) >= _MOST_UNITS:
            raise InputError(field, tuple(speeds), "are too far apart to balance", "Give weights.")
        # One unit more for whoever then takes the least time.
        least = min(range(len(weights)), key=lambda n: (weights[n] + 1) / speeds[n])
        weights[least] += 1
    return tuple(weights)


def _unequal(given: tuple[_N, ...]) -> tuple[_N, ...]:
    return given if len(set(given)) > 1 else ()


def tell_of_inputs(shapes: Iterable[Sequence[int]], axes: Sequence[Axis]) -> None:
    """Warn of axes that cannot split the batch, though it may be split along others."""
    for shape in dict.fromkeys(map(tuple, shapes)):
        for axis in axes:
            if shape and shape[0] % axis.units:
                words = "%s has %s, which do not divide dimension 0 of the input of shape %s: it is not split there"
                what = f"{axis.units} GPUs" if axis.is_even else f"shares of {axis.units} units"
                logger.warning(words, axis.name, what, list(shape))


def _rings(given: str | Topology, sizes: list[int], field: str) -> list[Ring]:
    """Rings of a named topology with as many hosts as the mesh has, or of one host's first GPUs."""
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


_FLAGS = (
    ("gbps", "X,Y", "GB/s that a GPU receives along each axis, or along all (350)"),
    ("latency_us", "X,Y", "of a collective along each axis, or along all (20)"),
    ("topology", "NAME", "whose links say how fast the axes are: hgx-h200, ndv2, ..."),
    ("speeds", "1x2,1", "how fast the GPUs of each axis compute: one number for all of them, or one for each"),
    ("weights", "1x2,1", "their shares of what is split, in the same way (small numbers that balance speeds)"),
    ("memory", "1x2,1", "their memory beside each other, in the same way: the budget is that of the largest"),
)


def add_mesh(parser: argparse.ArgumentParser) -> None:
    """Add ``--mesh`` and the flags that say more of it."""
    parser.add_argument("--mesh", required=True, metavar="2x4", help="GPUs along each axis, the slowest links first")
    for name, example, words in _FLAGS:
        parser.add_argument(_flag(name), metavar=example, help=words)


def given_mesh(arguments: argparse.Namespace) -> tuple[Axis, ...]:
    """The axes; raises InputError that names the flag."""
    return mesh(arguments.mesh, **{name: getattr(arguments, name) for name, _, _ in _FLAGS}, called=_flag)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
