"""Placements as numbers: which ones a tensor can have on a mesh, and which bytes of it a worker then holds.

A part is a dimension for ``S<dimension>``, ``WHOLE`` for ``R``, ``TERM`` for ``P``. Axes that split one dimension do so
in the order of the mesh: on a mesh of 2 x 4, worker (a, b) of (S0, S0) holds rows share 4 a + b of eight.

A dimension is split into so many equal *units*, the product of those of its axes. Along an axis a worker has as many of
them as its place has weight: one, where all are equal. Of weights (2, 1) and twelve rows, the first holds 0-7.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache

import numpy as np

from loadmaster.models.partition.problem import Axis, Part
from loadmaster.solvers.program import IntArray

WHOLE, TERM = -1, -2

Placement = tuple[int, ...]


@cache
def code(part: Part) -> int:
    """Number of a part: ``S2`` is 2."""
    return {"R": WHOLE, "P": TERM}.get(part) if part in "RP" else int(part[1:])  # type: ignore[return-value]


def part_of(code: int) -> Part:
    """Part of a number: 2 is ``S2``."""
    return {WHOLE: "R", TERM: "P"}.get(code, f"S{code}")


@dataclass(frozen=True)
class Worker:
    """Workers that hold equally much of everything: so many of the units of each axis. What one holds, over its part of
    the budget (``memory_factor``), is the budget that it needs."""

    shares: tuple[int, ...]
    units: tuple[int, ...]
    memory_factor: float = 1.0

    @property
    def fractions(self) -> list[Fraction]:
        """Share that such a worker has of what is split along each axis."""
        return [Fraction(share, units) for share, units in zip(self.shares, self.units, strict=True)]

    def share_shape(self, shape: Sequence[int], placement: Sequence[int]) -> list[int]:
        """Shape of what such a worker holds of a tensor."""
        found = list(shape)
        for part, share, units in zip(placement, self.shares, self.units, strict=True):
            if part >= 0:
                found[part] = found[part] // units * share
        return found

    def held_elements(self, shape: Sequence[int], placement: Sequence[int]) -> int:
        """Number of elements that such a worker holds of a tensor."""
        return math.prod(self.share_shape(shape, placement))


def divided(shape: Sequence[int], placement: Sequence[int], units: Sequence[int]) -> list[int]:
    """Number of units into which each dimension is split."""
    found = [1] * len(shape)
    for part, count in zip(placement, units, strict=True):
        if part >= 0:
            found[part] *= count
    return found


def divides(shape: Sequence[int], placement: Sequence[int], units: Sequence[int]) -> bool:
    """Return whether every dimension that is split exists and has equal units, by the units of each axis."""
    if max(placement) >= len(shape):
        return False
    return all(extent % n == 0 for extent, n in zip(shape, divided(shape, placement, units), strict=True))


@lru_cache(maxsize=4096)
def possible(
    shape: tuple[int, ...], units: tuple[int, ...], dims: frozenset[int] | None = None, *, replicas: bool
) -> tuple[Placement, ...]:
    """The placements that a tensor can be stored in: no terms of sums.

    Args:
        units: of each axis.
        dims: that may be split; None: all of them.
        replicas: whether it may be stored whole on several workers. Without, only those of the smallest units are left.
    """
    parts = [*(d for d in range(len(shape)) if dims is None or d in dims), WHOLE]
    found = tuple(p for p in itertools.product(parts, repeat=len(units)) if divides(shape, p, units))
    if replicas:
        return found
    counts = [math.prod(divided(shape, p, units)) for p in found]
    most = max(counts)
    return tuple(p for p, count in zip(found, counts, strict=True) if count == most)


@dataclass(frozen=True)
class Mesh:
    """The workers of a mesh, by their places on its axes."""

    axes: tuple[Axis, ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of workers along each axis."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Number of units along each axis."""
        return tuple(axis.units for axis in self.axes)

    @cached_property
    def is_even(self) -> bool:
        """True if all shares are equal."""
        return all(axis.is_even for axis in self.axes)

    @cached_property
    def places(self) -> IntArray:
        """Place of every worker on each axis, [workers, axes]."""
        return np.array(list(itertools.product(*map(range, self.sizes))), dtype=np.int64)

    def worker(self, place: Sequence[int]) -> Worker:
        """The worker at a place on every axis."""
        return self._worker([_held(axis)[n] for axis, n in zip(self.axes, place, strict=True)])

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """All unequal workers, each once."""
        return self._product([list(dict.fromkeys(_held(axis))) for axis in self.axes])

    @cached_property
    def fullest(self) -> tuple[Worker, ...]:
        """Workers that keep the budget only if all others do: no other has as much and no more memory. What one holds
        grows with its share along every axis, whatever the other axes."""
        return self._product([_undominated(dict.fromkeys(_held(axis))) for axis in self.axes])

    @cached_property
    def largest(self) -> Worker:
        """A worker with the largest share along every axis."""
        return self._worker([(max(axis.shares), 1.0) for axis in self.axes])

    def _product(self, by_axis: Sequence[Sequence[tuple[int, float]]]) -> tuple[Worker, ...]:
        return tuple(dict.fromkeys(map(self._worker, itertools.product(*by_axis))))

    def _worker(self, held: Sequence[tuple[int, float]]) -> Worker:
        return Worker(tuple(share for share, _ in held), self.units, math.prod(factor for _, factor in held))

    def regions(
        self, shape: Sequence[int], placements: Iterable[Sequence[int]], halos: Sequence[tuple[int, int, int]] = ()
    ) -> IntArray:
        """First and end of the elements that each worker holds of each dimension, [placements, workers, dimensions, 2].

        A halo is (dimension, before, after): so many elements beyond the own share, where the tensor has them.
        """
        found = []
        for placement in placements:
            key = (tuple(shape), tuple(placement), tuple(halos))
            if key not in self._known:
                self._known[key] = self._region(shape, placement, halos)
            found.append(self._known[key])
        return np.array(found, dtype=np.int64)

    @cached_property
    def _known(self) -> dict[object, IntArray]:
        return {}

    def _region(
        self, shape: Sequence[int], placement: Sequence[int], halos: Sequence[tuple[int, int, int]]
    ) -> IntArray:
        region = np.zeros((len(self.places), len(shape), 2), dtype=np.int64)
        for d, extent in enumerate(shape):
            start, length = np.zeros(len(self.places), dtype=np.int64), np.full(len(self.places), extent)
            for n, (axis, part) in enumerate(zip(self.axes, placement, strict=True)):
                if part == d:
                    shares, at = np.array(axis.shares), self.places[:, n]
                    unit = length // axis.units
                    start, length = start + unit * (shares.cumsum() - shares)[at], unit * shares[at]
            region[:, d, 0], region[:, d, 1] = start, start + length
        for d, before, after in halos:
            region[:, d, 0] = np.maximum(region[:, d, 0] - before, 0)
            region[:, d, 1] = np.minimum(region[:, d, 1] + after, shape[d])
        return region


def _held(axis: Axis) -> list[tuple[int, float]]:
    """Units, and the part of the budget, of each place on an axis."""
    return [*zip(axis.shares, axis.memory_factors or (1.0,) * axis.size, strict=True)]


def _undominated(held: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Pairs of ``held`` that no other dominates with as many units and as little memory."""
    every = list(held)
    return [
        (share, factor)
        for share, factor in every
        if not any(s >= share and f <= factor and (s, f) != (share, factor) for s, f in every)
    ]
