"""Column aliasing: one variable for all pairs (chunk, link), or (chunk, rank), that symmetries map onto each other.

A schedule that is its own image under a symmetry has equal variables at (c, k) and at their images; so a program needs
one column for each orbit, and one row of those that become equal.

Source: [Shah23], equations 5.12 to 5.14, which state it by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.models.collective.instance import Instance
from loadmaster.models.collective.symmetry import closure

IntArray = NDArray[np.int64]


class Aliases:
    """The orbits of an instance under its generators; without any, every pair is alone."""

    def __init__(self, instance: Instance) -> None:
        self._topology = instance.topology
        self._group = closure(instance.generators, instance.topology.rank_count, len(instance.chunks))

    @cached_property
    def chunks(self) -> IntArray:
        """First chunk of each chunk's orbit, [chunks]."""
        return np.asarray(self._chunk_images.min(axis=0))

    @cached_property
    def links(self) -> IntArray:
        """First link of each link's orbit, [links]."""
        return np.asarray(self._link_images.min(axis=0))

    def of_links(self, chunk: IntArray, link: IntArray) -> IntArray:
        """Number the orbits of pairs (chunk, link), from 0 in the order of first members: [pairs]."""
        images = (
            self._chunk_images[g][chunk] * len(self._topology.links) + self._link_images[g][link] for g in self._all
        )
        return _numbered(images)

    def of_ranks(self, chunk: IntArray, rank: IntArray) -> IntArray:
        """Number the orbits of pairs (chunk, rank), from 0 in the order of first members: [pairs]."""
        ranks = np.array([g.ranks for g in self._group], dtype=np.int64)
        images = (self._chunk_images[g][chunk] * self._topology.rank_count + ranks[g][rank] for g in self._all)
        return _numbered(images)

    @property
    def _all(self) -> range:
        return range(len(self._group))

    @cached_property
    def _chunk_images(self) -> IntArray:
        return np.array([g.chunks for g in self._group], dtype=np.int64)

    @cached_property
    def _link_images(self) -> IntArray:
        """Images of all links under each element of the group, [elements, links]."""
        count = self._topology.rank_count
        index = np.full(count * count, -1, dtype=np.int64)
        source = np.array([k.source for k in self._topology.links], dtype=np.int64)
        target = np.array([k.target for k in self._topology.links], dtype=np.int64)
        index[source * count + target] = np.arange(len(source))
        found = []
        for element in self._group:
            ranks = np.array(element.ranks, dtype=np.int64)
            found.append(index[ranks[source] * count + ranks[target]])
        return np.array(found, dtype=np.int64)


def _numbered(images: Iterator[IntArray]) -> IntArray:
    """Numbers of the least images."""
    least = next(images)
    for image in images:
        least = np.minimum(least, image)
    return np.unique(least, return_inverse=True)[1].astype(np.int64).ravel()
