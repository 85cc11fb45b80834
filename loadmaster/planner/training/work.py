"""Work of a mix: what device, both directions of the link, host and disk have to do in a step, in no order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from loadmaster.models.training.problem import Group
from loadmaster.models.training.ways import Way
from loadmaster.planner.training.baselines import Mix
from loadmaster.planner.training.windows import Ground
from loadmaster.solvers.program import FloatArray

# In prices: the part that the work of those counts that are not the busiest.
_SHARE = 0.2


class Load(NamedTuple):
    """Time that each worker is busy for in a step."""

    device_us: float
    to_host_us: float
    from_host_us: float
    host_us: float
    disk_us: float = 0.0


class Work:
    """Times by layer and point, and by group and way, of one problem; ``listed``: the ways that each group may have."""

    def __init__(self, ground: Ground, listed: Sequence[Sequence[Way]]) -> None:
        self.ground, problem = ground, ground.problem
        times = problem.micro_batches
        self._points = [
            [times * (point.forward_us + point.backward_us) for point in problem.points(layer)]
            for layer in range(len(problem.layers))
        ]
        quickest = [min(range(len(of)), key=of.__getitem__) for of in self._points]
        lengths = ground.lengths_us(quickest)
        self._ways = [
            [self._load(g, group, way, lengths) for way in of]
            for g, (group, of) in enumerate(zip(problem.groups, listed, strict=True))
        ]

    def _load(self, g: int, group: Group, way: Way, lengths: list[float]) -> Load:
        host = self.ground.problem.host
        device_us = group.update_us if way.update == "device" else 0.0
        to_us = from_us = host_us = 0.0
        if way.has_stay:
            to_us, from_us = host.store_us(way.stored_bytes(group)), host.load_us(way.loaded_bytes(group))
        if way.update == "host":
            assert group.host_update_us is not None
            to_us, host_us = host.store_us(group.copy_gradient_bytes), group.host_update_us
        copy_us = host.load_us(group.copy_bytes)
        if way.weights == "copy" and way.update == "host":
            from_us += copy_us
        if way.weights == "streamed":
            # A copy stays between two uses that are no further apart than a load takes.
            uses = self.ground.uses[g]
            between = [sum(lengths[a + 1 : b]) for a, b in itertools.pairwise(uses)]
            from_us += copy_us * (1 + sum(us > copy_us for us in between))
        disk, size = self.ground.problem.disk, group.state_bytes
        disk_us = disk.store_us(size) + disk.load_us(size) if disk is not None and way.state == "disk" else 0.0
        return Load(device_us, to_us, from_us, host_us, disk_us)

    def point_load(self, layer: int, number: int) -> Load:
        """Return the work of a layer that runs by a point."""
        return Load(self._points[layer][number], 0.0, 0.0, 0.0)

    def way_load(self, g: int, number: int) -> Load:
        """Return the work of a group that is treated in a way."""
        return self._ways[g][number]

    @staticmethod
    def price_of(loads: FloatArray) -> FloatArray:
        """Price loads, the last axis that of the workers: the time of the busiest one, and a part of that of all."""
        price: FloatArray = loads.max(axis=-1) + _SHARE * loads.sum(axis=-1)
        return price

    def loads(self, mix: Mix) -> Load:
        """Return the work of a mix."""
        of = [ways[n] for ways, n in zip(self._ways, mix.ways, strict=True)]
        device_us = sum(points[n] for points, n in zip(self._points, mix.points, strict=True))
        return Load(
            device_us + sum(load.device_us for load in of),
            sum(load.to_host_us for load in of),
            sum(load.from_host_us for load in of),
            sum(load.host_us for load in of),
            sum(load.disk_us for load in of),
        )

    def least_us(self, mix: Mix) -> float:
        """Return the time of the busiest worker, below which no step is."""
        return max(self.loads(mix))
