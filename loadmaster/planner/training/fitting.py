"""Mixes made to fit: one change at a time, of all changes the one that takes the least work for the bytes it saves.

Bytes count here without moves: a group has what its way has at least in each phase, and what an update on the device
loads is left out. So a mix that does not fit here fits nowhere, and one that does may still lack room for updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.models.training.residency import disk_bytes, gradient_bytes, host_bytes
from loadmaster.models.training.ways import Way
from loadmaster.planner.training.baselines import Mix
from loadmaster.planner.training.windows import Ground, Windows
from loadmaster.planner.training.work import Work
from loadmaster.solvers.program import FloatArray, IntArray

# Changes cost at least so much: one that saves work is not worth any number of bytes.
_LEAST_US = 1.0
# Columns after those of phases.
_HOST, _FILES = -2, -1
# So often is room made for the updates as they are placed now.
_MOST_ROUNDS = 20


class MixFitter:
    """Bytes by layer and point and by group and way, in each phase; after the last phase, those on the host and those
    in files. States in files have one buffer on the host: room for the largest of them."""

    def __init__(self, ground: Ground, work: Work, listed: Sequence[Sequence[Way]], budget_bytes: int) -> None:
        """``listed``: the ways that each group may have."""
        self.ground, self.work, self.listed, self.budget_bytes = ground, work, listed, budget_bytes
        problem = ground.problem
        tiers = (problem.host, problem.disk)
        capacities = [None if tier is None else tier.capacity_bytes for tier in tiers]
        # Without a limit a tier has as much room as there can be bytes.
        rooms = [np.inf if capacity is None else float(capacity) for capacity in capacities]
        scales = [budget_bytes / capacity if capacity else 1.0 for capacity in capacities]
        self._room: FloatArray = np.array([float(budget_bytes - problem.fixed_bytes)] * ground.count + rooms)
        self._scale: FloatArray = np.array([1.0] * ground.count + scales)
        rows: list[FloatArray] = []
        self._items: list[IntArray] = []
        loads: list[tuple[float, ...]] = []
        for layer in range(len(problem.layers)):
            points = range(len(problem.points(layer)))
            self._items.append(len(rows) + np.arange(len(points)))
            rows += [self._point(layer, number) for number in points]
            loads += [work.point_load(layer, number) for number in points]
        for g, found in enumerate(listed):
            self._items.append(len(rows) + np.arange(len(found)))
            rows += [self._way(g, way) for way in found]
            loads += [work.way_load(g, number) for number in range(len(found))]
        self._bytes, self._loads = np.array(rows), np.array(loads)
        self._buffers: FloatArray = self._bytes[:, _FILES]
        self._item_of = np.repeat(np.arange(len(self._items)), [len(of) for of in self._items])

    def _point(self, layer: int, number: int) -> FloatArray:
        point, ground = self.ground.problem.points(layer)[number], self.ground
        held = np.zeros(len(self._room))
        layers = len(ground.problem.layers)
        for start in range(0, ground.count, 2 * layers):
            back = start + 2 * layers - 1 - layer
            held[start + layer : back + 1] = point.kept_bytes
            held[start + layer] += point.forward_bytes
            held[back] += point.backward_bytes
        return held

    def _way(self, g: int, way: Way) -> FloatArray:
        group, ground = self.ground.problem.groups[g], self.ground
        held = np.full(len(self._room), float(way.resident_bytes(group)))
        if way.update != "none":
            last = ground.last_gradient[g] if way.update == "host" else ground.update_from[g]
            held[ground.first_gradient[g] : last + 1] += gradient_bytes(group, way)
        if way.weights == "streamed":
            held[list(ground.uses[g])] += group.copy_bytes
        held[_HOST], held[_FILES] = host_bytes(group, way), disk_bytes([group], [way])
        return held

    def _rows(self, mix: Mix) -> IntArray:
        chosen: IntArray = np.array([of[n] for of, n in zip(self._items, (*mix.points, *mix.ways), strict=True)])
        return chosen

    def may_fit(self, mix: Mix) -> bool:
        """Return whether a mix fits where moves take no room."""
        return bool((self._taken(self._rows(mix)) <= self._room).all())

    def _taken(self, rows: IntArray) -> FloatArray:
        taken: FloatArray = self._bytes[rows].sum(axis=0)
        taken[_HOST] += self._buffers[rows].max()
        return taken

    def repaired(self, mix: Mix) -> Mix | None:
        """Change a mix until it fits where moves take no room; None if no single change leads on."""
        return self._mix(mix, self._changed(self._rows(mix), np.zeros_like(self._room)))

    def fitted(self, mix: Mix) -> Mix | None:
        """Change a mix until it fits with its updates; None if no single change leads on."""
        updates: FloatArray = np.zeros_like(self._room)
        for _ in range(_MOST_ROUNDS):
            found = self._mix(mix, self._changed(self._rows(mix), updates))
            if found is None:
                return None
            mix = found
            chosen = [of[n] for of, n in zip(self.listed, mix.ways, strict=True)]
            windows = Windows(self.ground, mix.points, chosen, self.budget_bytes, mix.delays)
            if windows.place_updates():
                return mix
            updates[:_HOST] = (self._room - self._taken(self._rows(mix)))[:_HOST] - windows.room.left
        return None

    def _mix(self, mix: Mix, rows: IntArray | None) -> Mix | None:
        if rows is None:
            return None
        numbers = [int(row - of[0]) for row, of in zip(rows, self._items, strict=True)]
        layers = len(mix.points)
        return mix._replace(points=tuple(numbers[:layers]), ways=tuple(numbers[layers:]))

    def _changed(self, rows: IntArray, updates: FloatArray) -> IntArray | None:
        """Change rows until their bytes and those of updates fit."""
        taken, load = self._taken(rows), self._loads[rows].sum(axis=0)
        room = self._room - updates
        while (short := self._short(taken - room)) > 0:
            before = rows[self._item_of]
            over = taken - room + self._bytes - self._bytes[before]
            over[:, _HOST] += np.maximum(self._buffers - self._buffers[rows].max(), 0.0)
            saved = short - self._short(over)
            costs_us = self.work.price_of(load + self._loads - self._loads[before]) - self.work.price_of(load)
            worth = np.where(saved > 0, saved / np.maximum(costs_us, _LEAST_US), 0.0)
            best = int(worth.argmax())
            if worth[best] <= 0:
                return None
            load += self._loads[best] - self._loads[before[best]]
            rows = rows.copy()
            rows[self._item_of[best]] = best
            taken = self._taken(rows)
        return rows

    def _short(self, over: FloatArray) -> FloatArray:
        """Sum what lacks over all phases."""
        lacking: FloatArray = (np.maximum(over, 0.0) * self._scale).sum(axis=-1)
        return lacking
