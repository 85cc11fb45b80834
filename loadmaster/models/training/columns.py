"""Columns of the program of a training step: flows of moves and updates, and the windows in which they may go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmaster.models.training.runs import Runs
from loadmaster.models.training.ways import Way, ways
from loadmaster.solvers.program import IntArray, ProgramBuilder

__all__ = ["Columns", "Flow", "GroupColumns", "Terms", "Update", "flows"]

Terms = list[tuple[int, float]]


class Flow:
    """Groups whose move or update is over by the end of each slot: 0 before the window, the total at its end."""

    def __init__(self, b: ProgramBuilder, name: str, first: int, last: int, total: Sequence[int]) -> None:
        self.first, self.last = first, last
        self.columns = b.columns(name, last - first)
        self._listed = self.columns.tolist()
        self.total: Terms = [(column, 1.0) for column in total]

    def __call__(self, slot: int, factor: float = 1.0) -> Terms:
        """Terms of the flow at the end of a slot, times a factor."""
        if slot < self.first:
            return []
        if slot < self.last:
            return [(self._listed[slot - self.first], factor)]
        return [(column, factor * value) for column, value in self.total]

    def during(self, slot: int, factor: float) -> Terms:
        """Terms of what the flow moves in a slot, times a factor."""
        return self(slot, factor) + self(slot - 1, -factor)

    @property
    def slots(self) -> range:
        """Slots of the window."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class Update:
    """Updates on the device in one way, and the loads and stores of what they need, if anything."""

    way: Way
    x: int
    updates: Flow
    loads: Flow | None = None
    stores: Flow | None = None


@dataclass
class GroupColumns:
    """Columns of one group run.

    Attributes:
        x: groups by way. ``first``, ``last``: of its first and its last layer; x itself where it has one layer.
        updates: on the device, by way.
        made: gradients at the end of the slot that completes them, by whether the weights are on the device.
        gradients, host_updates: of all ways that update on the host.
        copies: loaded in place, where the host updates.
        gaps: loads of streamed copies after each use; None where none can have left.
        used: streamed copies at the end of the slot of each use; none where a run has one layer.
    """

    ways: tuple[Way, ...]
    x: IntArray
    first: IntArray
    last: IntArray
    updates: list[Update] = field(default_factory=list)
    made: dict[bool, int] = field(default_factory=dict)
    gradients: Flow | None = None
    host_updates: Flow | None = None
    copies: Flow | None = None
    gaps: list[Flow | None] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def on_device(self, columns: IntArray, weights: bool) -> list[int]:
        """List the columns of the ways that update on the device, by whether the weights are there."""
        return self._of(columns, [w.update == "device" and (w.weights == "device") is weights for w in self.ways])

    def on_host(self, columns: IntArray) -> list[int]:
        """List the columns of the ways that update on the host."""
        return self._of(columns, [w.update == "host" for w in self.ways])

    def streamed(self, columns: IntArray) -> list[int]:
        """List the columns of the ways that stream the copy."""
        return self._of(columns, [w.weights == "streamed" for w in self.ways])

    def _of(self, columns: IntArray, chosen: Sequence[bool]) -> list[int]:
        return [column for column, is_one in zip(columns.tolist(), chosen, strict=True) if is_one]


class Columns:
    """All columns: y [runs][points] and those of its first and last layer, slots' lengths, layers with host updates of
    each run, and those of group runs."""

    def __init__(self, b: ProgramBuilder, runs: Runs) -> None:
        self.runs = runs
        self.tau = b.columns("tau", runs.slots, cost=1.0)
        self.y: list[IntArray] = []
        self.first: list[IntArray] = []
        self.last: list[IntArray] = []
        for a, run in enumerate(runs.layers):
            shape, count = len(runs.problem.points(run.layers[0])), len(run.layers)
            y = b.columns(f"y[{a}]", shape, upper=count, integer=True)
            self.y.append(y)
            self.first.append(b.columns(f"first[{a}]", shape) if count > 1 else y)
            self.last.append(b.columns(f"last[{a}]", shape) if count > 1 else y)
        self.turns = b.columns("turns", len(runs.layers))
        self.groups = [self._group(b, r) for r in range(len(runs.groups))]

    def _group(self, b: ProgramBuilder, r: int) -> GroupColumns:
        group, run = self.runs.alike(r), self.runs.groups[r]
        listed = ways(group, has_disk=self.runs.problem.disk is not None)
        x = b.columns(f"x[{r}]", len(listed), upper=len(run.groups), integer=True)
        has_ends = not run.is_shared and len(run.layers) > 1
        first = b.columns(f"first_way[{r}]", len(listed)) if has_ends else x
        last = b.columns(f"last_way[{r}]", len(listed)) if has_ends else x
        found = GroupColumns(listed, x, first, last)
        if group.is_trained:
            self._updates(b, r, found)
        self._gaps(b, r, found)
        return found

    def _updates(self, b: ProgramBuilder, r: int, found: GroupColumns) -> None:
        """Add the flows of updates, where a group is trained."""
        runs, slot = self.runs, self.runs.slot
        complete, ready, use = runs.last_gradients(r), runs.updates_from(r), runs.next_uses(r)
        end = slot(use.last - 1)
        for w, way in enumerate(found.ways):
            if way.update != "device":
                continue
            x = int(found.x[w])
            update = Flow(b, f"updates[{r},{w}]", slot(ready.first), end, [x])
            loads = stores = None
            if way.has_stay:
                first = slot(ready.first + 1)
                loads = Flow(b, f"loads[{r},{w}]", first - runs.slots, end, [x])
                stores = Flow(b, f"stores[{r},{w}]", first, end + runs.slots, [x])
            found.updates.append(Update(way, x, update, loads, stores))
        for weights in (True, False):
            if ready.first < ready.last and found.on_device(found.x, weights):
                found.made[weights] = int(b.columns(f"made[{r},{int(weights)}]", ()))
        if group_updates := found.on_host(found.x):
            in_place = [c for c in group_updates if c not in found.streamed(found.x)]
            sent, end = slot(complete.first + 1), slot(use.last)
            # The norm is there once the last phase has ended, though not the device updates after it.
            start = max(sent, slot(ready.first)) if runs.problem.clip_grad_norm else sent
            found.gradients = Flow(b, f"gradients[{r}]", sent, end, group_updates)
            found.host_updates = Flow(b, f"host_updates[{r}]", start, end, group_updates)
            found.copies = Flow(b, f"copies[{r}]", start, end, in_place)

    def _gaps(self, b: ProgramBuilder, r: int, found: GroupColumns) -> None:
        """Add the loads of streamed copies. After the last use of a step, the weights change: all are loaded again."""
        runs, streamed = self.runs, found.streamed(found.x)
        uses = runs.uses(r)
        following = [*uses[1:], uses[0].later(len(runs.phases))]
        if found.first is not found.x:
            found.used = b.columns(f"used[{r}]", len(uses)).tolist()
        for i, (use, following_use) in enumerate(zip(uses, following, strict=True)):
            first, last = runs.slot(use.first + 1), runs.slot(following_use.last)
            if i == len(uses) - 1 and runs.alike(r).is_trained:
                found.gaps.append(Flow(b, f"streamed[{r},{i}]", first, last, streamed))
            elif first < last:
                away = int(b.columns(f"away[{r},{i}]", ()))
                found.gaps.append(Flow(b, f"streamed[{r},{i}]", first, last, [away]))
            else:
                found.gaps.append(None)


def flows(g: GroupColumns) -> list[Flow]:
    """List all flows of a group run."""
    found = [flow for u in g.updates for flow in (u.updates, u.loads, u.stores)]
    return [flow for flow in (*found, g.gradients, g.host_updates, g.copies, *g.gaps) if flow is not None]
