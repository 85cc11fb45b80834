"""Costs of bringing a tensor from one placement to another: the one rule that checker and formulations share.

Bytes. A worker needs a region N of the tensor and holds a region H of it. It receives what it lacks: |N| - |N and H|.
Where the tensor is stored as terms of a sum over k workers, it needs the region of every term and holds its own:
k |N| - |N and H|. Where r of those workers end with the same region, each adds up a share of it and they exchange the
shares ([Wang20] section 3.6):

    (k |N| - |N and H|) / r + |N| (1 - 1/r)

For k = r = 2 and everything else equal that is |N|: an all-reduce. Bytes of all workers are added up.

Time. A redistribution is a path of collectives along one axis each, the shortest one. With k workers on the axis, b the
bytes that each of them holds before, l the latency of the axis and B its bandwidth:

    S<d> -> R      all-gather        l + (k - 1) b / B
    S<d> -> S<e>   all-to-all        l + (k - 1) b / (k B)
    P -> R         all-reduce        2 (l + (k - 1) b / (k B))
    P -> S<d>      reduce-scatter    l + (k - 1) b / (k B)
    R -> S<d>      each keeps its share, nothing moves

Where shares along the axis are unequal, k - 1 of the largest are gathered, and so many scattered: collectives of NCCL
are for equal ones. In an all-to-all each worker sends and receives what its share asks for, and the largest takes
longest. With w of U units, whose worker receives most, that is b w (U - w) / (U max w) for (k - 1) b / k. An all-reduce
does not depend on shares. Bytes b are always those of the worker with the largest share on every axis.

Several axes that split one dimension do so in the order of the mesh, so only the last of them can leave it or join it.
A halo costs one more exchange along each axis that splits its dimension.

Example, a mesh of 2 x 2 and 8 rows: (S0, S0) -> (R, S0). Worker (0, 1) holds rows 2-3 and needs rows 4-7: 4 rows.
Worker (0, 0) holds 0-1 and needs 0-3: 2 rows. All together 2 + 4 + 4 + 2 = 12 rows. In time: gather along the second
axis, gather along the first, keep a share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from loadmaster.models.partition.placements import TERM, WHOLE, Mesh, Placement, divides
from loadmaster.models.partition.problem import Axis
from loadmaster.solvers.program import FloatArray

Halos = tuple[tuple[int, int, int], ...]


class Hop(NamedTuple):
    """One collective of a redistribution: along an axis a part becomes another one."""

    axis: int
    part: int
    to: int

    @property
    def collective(self) -> str | None:
        """Name of the collective; None where each worker keeps a share of what it has."""
        if self.part == WHOLE:
            return None
        if self.part == TERM:
            return "all-reduce" if self.to == WHOLE else "reduce-scatter"
        return "all-gather" if self.to == WHOLE else "all-to-all"


@dataclass(frozen=True)
class Traffic:
    """Costs of redistributions on one mesh."""

    axes: tuple[Axis, ...]

    @cached_property
    def mesh(self) -> Mesh:
        """Mesh of the axes, with its workers."""
        return Mesh(self.axes)

    def received_bytes(
        self,
        shape: Sequence[int],
        element_bytes: int,
        held: Sequence[Placement],
        needed: Sequence[Placement],
        halos: Halos = (),
    ) -> FloatArray:
        """Bytes that all workers receive together, [held, needed]; infinite where a sum would have to be taken apart.
        Halos are of the needed placements."""
        have, want = self.mesh.regions(shape, held), self.mesh.regions(shape, needed, halos)
        want_elements = np.prod(want[..., 1] - want[..., 0], axis=-1).sum(axis=-1)
        low = np.maximum(have[:, None, ..., 0], want[None, ..., 0])
        high = np.minimum(have[:, None, ..., 1], want[None, ..., 1])
        shared = np.prod(np.maximum(high - low, 0), axis=-1).sum(axis=-1)
        terms, alike, possible = self._sums(held, needed)
        elements = (terms * want_elements - shared + (alike - 1) * want_elements) / alike
        return np.where(possible, elements * element_bytes, np.inf)

    def _sums(
        self, held: Sequence[Placement], needed: Sequence[Placement]
    ) -> tuple[FloatArray, FloatArray, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
        """Terms to add up, workers that end with the same sum, and whether it can be done: each [held, needed]."""
        have, want = np.array(held)[:, None, :], np.array(needed)[None, :, :]
        sizes = np.array(self.mesh.sizes, dtype=float)
        added = (have == TERM) & (want != TERM)
        terms = np.where(added, sizes, 1.0).prod(axis=-1)
        alike = np.where(added & (want == WHOLE), sizes, 1.0).prod(axis=-1)
        return terms, alike, ~((want == TERM) & (have != TERM)).any(axis=-1)

    def time_us(
        self,
        shape: Sequence[int],
        element_bytes: int,
        held: Sequence[Placement],
        needed: Sequence[Placement],
        halos: Halos = (),
    ) -> FloatArray:
        """Microseconds of the shortest path, [held, needed]; infinite where none leads there."""
        paths = self._paths(tuple(shape), element_bytes)
        number = paths.number
        rows, columns = [number[p] for p in held], [number[p] for p in needed]
        halos_us = np.array([self._halo_us(shape, element_bytes, p, halos) for p in needed])
        found: FloatArray = paths.times_us[np.ix_(rows, columns)] + halos_us
        return found

    def path(self, shape: Sequence[int], element_bytes: int, held: Placement, needed: Placement) -> list[Hop]:
        """The steps of the shortest path, where there is one (:meth:`time_us` is finite)."""
        return self._paths(tuple(shape), element_bytes).hops(held, needed)

    def _halo_us(self, shape: Sequence[int], element_bytes: int, placement: Placement, halos: Halos) -> float:
        held = self.mesh.largest.share_shape(shape, placement)
        held_bytes = math.prod(held) * element_bytes
        found = 0.0
        for d, before, after in halos:
            for axis, part in zip(self.axes, placement, strict=True):
                if part == d:
                    found += axis.latency_us + held_bytes / held[d] * (before + after) / (axis.gbps * 1e3)
        return found

    def _paths(self, shape: tuple[int, ...], element_bytes: int) -> _Paths:
        found = self._known.get((shape, element_bytes))
        if found is None:
            found = self._known[shape, element_bytes] = _Paths(self.mesh, shape, element_bytes)
        return found

    @cached_property
    def _known(self) -> dict[tuple[tuple[int, ...], int], _Paths]:
        return {}


class _Paths:
    """Shortest paths between all placements of one shape."""

    def __init__(self, mesh: Mesh, shape: tuple[int, ...], element_bytes: int) -> None:
        self.axes = axes = mesh.axes
        self.shape, self.element_bytes = shape, element_bytes
        parts = [*range(len(shape)), WHOLE, TERM]
        grid = np.array(np.meshgrid(*[parts] * len(axes), indexing="ij")).reshape(len(axes), -1).T
        placements = [p for p in map(tuple, grid.tolist()) if divides(shape, p, mesh.units)]
        self.number: dict[Placement, int] = {p: n for n, p in enumerate(placements)}
        steps = np.full((len(placements), len(placements)), np.inf)
        np.fill_diagonal(steps, 0.0)
        for n, placement in enumerate(placements):
            held_bytes = mesh.largest.held_elements(shape, placement) * element_bytes
            for axis in range(len(axes)):
                for part in parts:
                    to = (*placement[:axis], part, *placement[axis + 1 :])
                    if part != placement[axis] and to in self.number and self._last(placement, axis, to):
                        steps[n, self.number[to]] = self._step_us(axis, placement[axis], part, held_bytes)
        self._steps_us = steps
        self.times_us = _shortest(steps)

    def hops(self, held: Placement, needed: Placement) -> list[Hop]:
        """Hops of a shortest path, each the first step of the path that is left."""
        placements = list(self.number)
        at, end = self.number[held], self.number[needed]
        found: list[Hop] = []
        seen = {at}
        while at != end:
            # Keeping a share is free, so that sums are equal on a way back, too.
            after = self._steps_us[at] + self.times_us[:, end]
            after[list(seen)] = np.inf
            to = int(after.argmin())
            axis = next(n for n, (a, b) in enumerate(zip(placements[at], placements[to], strict=True)) if a != b)
            found.append(Hop(axis, placements[at][axis], placements[to][axis]))
            seen.add(to)
            at = to
        return found

    def _last(self, placement: Placement, axis: int, to: Placement) -> bool:
        """Return whether no later axis splits the dimension that this one leaves, or the one that it joins."""
        later = placement[axis + 1 :]
        return not any(part >= 0 and part in later for part in (placement[axis], to[axis]))

    def _step_us(self, axis: int, part: int, to: int, held_bytes: int) -> float:
        along = self.axes[axis]
        if to == TERM:
            return np.inf
        if part == WHOLE:
            return 0.0
        if part >= 0 and to == WHOLE:
            return along.latency_us + (along.size - 1) * held_bytes / (along.gbps * 1e3)
        largest = max(along.shares)
        if part >= 0:
            pieces, of = max(share * (along.units - share) for share in along.shares) / largest, along.units
        elif to == WHOLE:
            pieces, of = along.size - 1, along.size
        else:
            pieces, of = (along.size - 1) * largest, along.units
        exchange_us = along.latency_us + pieces * held_bytes / of / (along.gbps * 1e3)
        return 2 * exchange_us if part == TERM and to == WHOLE else exchange_us


def _shortest(steps: FloatArray) -> FloatArray:
    """Least sums along paths, [from, to], of steps [from, to] that are infinite where none exists. From each placement
    only few steps lead on: a path begins with one of them, and goes on along a shorter one."""
    finite = np.isfinite(steps)
    order = np.argsort(~finite, axis=1, kind="stable")[:, : int(finite.sum(axis=1).max())]
    first_us = np.take_along_axis(steps, order, axis=1)
    times = steps.copy()
    changed = True
    while changed:
        before = times.copy()
        for to, us in zip(order.T, first_us.T, strict=True):
            np.minimum(times, us[:, None] + times[to], out=times)
        changed = bool((times != before).any())
    return times
