"""Placements as numbers: which ones a tensor can have on a mesh, and which bytes of it a worker then holds.

A part is a dimension for ``S<dimension>``, ``WHOLE`` for ``R``, ``TERM`` for ``P``. Axes that split one dimension do so
in the order of the mesh: on a mesh of 2 x 4, worker (a, b) of (S0, S0) holds rows share 4 a + b of eight. Dimensions
are split into equal shares only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np

from loadmaster.models.partition.problem import Part
from loadmaster.solvers.program import IntArray

WHOLE, TERM = -1, -2

Placement = tuple[int, ...]


@cache
def code(part: Part) -> int:
    """``S2`` as 2."""
    return {"R": WHOLE, "P": TERM}.get(part) if part in "RP" else int(part[1:])  # type: ignore[return-value]


def part_of(code: int) -> Part:
    """2 as ``S2``."""
    return {WHOLE: "R", TERM: "P"}.get(code, f"S{code}")


def shares(placement: Sequence[int], sizes: Sequence[int], rank: int) -> list[int]:
    """Into how many shares each dimension is split."""
    found = [1] * rank
    for part, size in zip(placement, sizes, strict=True):
        if part >= 0:
            found[part] *= size
    return found


def divides(shape: Sequence[int], placement: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether every dimension that is split exists and has equal shares."""
    if max(placement) >= len(shape):
        return False
    return all(extent % n == 0 for extent, n in zip(shape, shares(placement, sizes, len(shape)), strict=True))


def held_elements(shape: Sequence[int], placement: Sequence[int], sizes: Sequence[int]) -> int:
    """Of one worker."""
    found = 1
    for extent, n in zip(shape, shares(placement, sizes, len(shape)), strict=True):
        found *= extent // n
    return found


@lru_cache(maxsize=4096)
def possible(
    shape: tuple[int, ...], sizes: tuple[int, ...], dims: frozenset[int] | None = None, *, replicas: bool
) -> tuple[Placement, ...]:
    """The placements that a tensor can be stored in: no terms of sums.

    Args:
        dims: that may be split; None: all of them.
        replicas: whether it may lie whole on several workers. Without, only the most divided ones are left: those
            that hold the fewest elements on a worker.
    """
    parts = [*(d for d in range(len(shape)) if dims is None or d in dims), WHOLE]
    found = tuple(p for p in itertools.product(parts, repeat=len(sizes)) if divides(shape, p, sizes))
    if replicas:
        return found
    held = [held_elements(shape, p, sizes) for p in found]
    least = min(held)
    return tuple(p for p, elements in zip(found, held, strict=True) if elements == least)


@dataclass(frozen=True)
class Mesh:
    """The workers of a mesh, by their places on its axes."""

    sizes: tuple[int, ...]

    @cached_property
    def places(self) -> IntArray:
        """[workers, axes]"""
        return np.array(list(itertools.product(*map(range, self.sizes))), dtype=np.int64)

    def regions(
        self, shape: Sequence[int], placements: Iterable[Sequence[int]], halos: Sequence[tuple[int, int, int]] = ()
    ) -> IntArray:
        """[placements, workers, dimensions, 2]: from which element to before which each worker holds each dimension.

        Args:
            halos: (dimension, before, after): so many elements beyond the own share, where the tensor has them.
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
        for d, (extent, n) in enumerate(zip(shape, shares(placement, self.sizes, len(shape)), strict=True)):
            place = np.zeros(len(self.places), dtype=np.int64)
            for axis, part in enumerate(placement):
                if part == d:
                    place = place * self.sizes[axis] + self.places[:, axis]
            region[:, d, 0] = place * (extent // n)
            region[:, d, 1] = region[:, d, 0] + extent // n
        for d, before, after in halos:
            region[:, d, 0] = np.maximum(region[:, d, 0] - before, 0)
            region[:, d, 1] = np.minimum(region[:, d, 1] + after, shape[d])
        return region
