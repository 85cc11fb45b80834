"""Trial steps of a model: the time and the bytes of each layer's phases, at each of its points.

They run through :class:`~loadmaster.executor.training.step.TrainingStep` itself: first with all blocks checkpointed,
then, at each of the other points, with one block of each class. Classes take turns where the budget has no room for all
of them at once. One more trial computes the loss in chunks. Gradients are dropped as they are made, and nothing is
updated. Before all of them, one step tells which parameters are read before the blocks, and which after them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.resident import allocated_bytes
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.torch_private.autograd import next_sequence_number
from loadmaster.executor.training.layers import ModelLayers, copy_format
from loadmaster.executor.training.meter import Mark, Meter
from loadmaster.executor.training.points import BLOCK_POINTS, CHECKPOINT, CHUNKED_LOSS, KEEP, POINTS
from loadmaster.executor.training.step import TrainingStep
from loadmaster.executor.training.uses import layers_that_read
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Group, LayerClass, Point, TrainingProblem

# Of each trial: the first compiles and fills the allocator's cache, the second counts bytes. That takes the processor
# longer than it takes to launch a small block, so the others are timed.
_RUNS, _COUNTING = 5, 1


@dataclass(frozen=True)
class Measured:
    """One trial step. Lists are of phases: times, bytes at their start and end, and at most; without weights that come
    and go."""

    times_us: list[float]
    start_bytes: list[int]
    end_bytes: list[int]
    most_bytes: list[int]


class _Recorder:
    """Callback of a step's positions, which marks them, and drops the gradients that are there by then.

    Attributes:
        sequence_numbers: numbers that autograd's next node had at positions of the forward pass.
    """

    def __init__(self, meter: Meter, parameters: Sequence[nn.Parameter]) -> None:
        self._meter, self._parameters = meter, parameters
        self.step: TrainingStep | None = None
        self.counts_bytes = True
        self.sequence_numbers: dict[int, int] = {}
        self._marks: dict[tuple[int, bool], tuple[Mark, int]] = {}

    def __call__(self, position: int, launched: bool) -> None:
        if self.step is None:
            return
        if not launched:
            self.sequence_numbers[position] = next_sequence_number()
            for p in self._parameters:
                p.grad = None
        mark = self._meter.mark(counts_bytes=self.counts_bytes)
        self._marks[position, launched] = mark, self.step.streamed_bytes

    def measured(self, phases: int) -> Measured:
        """Read the marks of the last step."""
        starts = [self._marks[p, True] for p in range(phases)]
        ends = [self._marks[p + 1, False] for p in range(phases)]
        return Measured(
            [self._meter.us(s, e) for (s, _), (e, _) in zip(starts, ends, strict=True)],
            [mark.size_bytes - away for mark, away in starts],
            [mark.size_bytes - away for mark, away in ends],
            [mark.most_bytes - away for mark, away in ends],
        )


class Trials:
    """Trial steps of a model.

    What is measured has weights in their own format: of copies in autocast's, autograd keeps no casts.

    Attributes:
        fixed_bytes: bytes that are there whatever runs, once it is measured.
        layers: with the uses of parameters outside of the blocks, once it is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        loss: Loss | None,
        layers: ModelLayers,
        problem: TrainingProblem,
        optimizer: torch.optim.Optimizer,
        meter: Meter,
        *,
        autocast: torch.dtype | None,
        compiled: bool,
    ) -> None:
        self._batch, self._meter, self._autocast, self.fixed_bytes = batch, meter, autocast, 0
        self._problem, self.layers = problem, layers
        self._outer = set(layers.outer)
        self._class_of = [layer.layer_class for layer in problem.layers]
        # The last block of a class keeps its results for the shortest time.
        self._measured = {number: n for n, number in enumerate(self._class_of)}
        frozen = tuple(Group(g.name, g.layers, g.weight_bytes, g.copy_bytes) for g in problem.groups)
        every = LayerClass("any", tuple(Point(point, 0.0, 0.0, 0) for point in POINTS))
        trial = replace(
            problem, classes=(every,) * (max(self._class_of) + 1), groups=frozen, micro_batches=1, clip_grad_norm=False
        )
        self._phases = Phases(trial)
        is_there = all(p.device == meter.device for p in model.parameters())
        self._plans = tuple(_trial_plan(self._phases, g, is_there=is_there) for g in range(len(frozen)))
        self._resident = allocated_bytes(model.parameters()) if is_there else 0
        self._recorder = _Recorder(meter, list(model.parameters()))
        self.step = self._recorder.step = TrainingStep(
            model,
            loss,
            _in_own_format(layers, {0, *self._measured.values()}),
            trial,
            self._schedule({}),
            optimizer,
            meter.device,
            copy_dtype=copy_format(autocast, problem.micro_batches),
            compiled=compiled,
            on_position=self._recorder,
        )

    def _schedule(self, points: dict[int, str]) -> Schedule:
        """Schedule with layers at points; the other blocks are checkpointed."""
        others = {n: KEEP if n in self._outer else CHECKPOINT for n in range(len(self._class_of))}
        return Schedule(tuple(POINTS.index(name) for name in (others | points).values()), self._plans)

    def measured(self, budget_bytes: int | None, say: Callable[[str], None]) -> list[tuple[Point, ...]]:
        """Measure the points of each class."""
        say("running trial steps, every block checkpointed")
        uses = self._uses()
        self.layers = self.layers.with_uses(uses)
        # Autograd adds up such a gradient, and parameters have none before all of it is there.
        self._waits = [uses.get(of.parameters[0]) == self.layers.outer for of in self.layers.groups]
        rest = self._run({})
        self.fixed_bytes = rest.start_bytes[0] - self._resident
        found = {number: {} if n in self._outer else {CHECKPOINT: rest} for number, n in self._measured.items()}
        for n in self._outer:
            found[self._class_of[n]][KEEP] = rest
        say("running trial steps, the loss in chunks")
        found[self._class_of[-1]].update(self._in_chunks(say))
        limit_bytes = min(self._meter.limit_bytes, budget_bytes or self._meter.limit_bytes)
        for classes in self._turns(rest, limit_bytes - max(rest.most_bytes)):
            for point in BLOCK_POINTS[:-1]:
                say(f"running trial steps, {len(classes)} classes of blocks at the point {point}")
                for number, way in self._at(point, classes, say).items():
                    found[number][point] = way
        return [self._undominated(number, found[number]) for number in sorted(found)]

    def _in_chunks(self, say: Callable[[str], None]) -> dict[str, Measured]:
        """Measure what runs after the blocks with its loss in chunks, if any of it can be."""
        before, last = self.step.losses_in_chunks, self._class_of[-1]
        found = self._at(CHUNKED_LOSS, [last], say)
        return {CHUNKED_LOSS: found[last]} if found and self.step.losses_in_chunks > before else {}

    def _turns(self, rest: Measured, room_bytes: int) -> Iterator[list[int]]:
        """Classes that keep their results at the same time. What a block makes again in its backward pass is what it
        keeps otherwise."""
        turn: list[int] = []
        left = room_bytes
        for number, n in self._measured.items():
            if n in self._outer:
                continue
            backward = len(self._phases) - 1 - n
            size_bytes = rest.most_bytes[backward] - rest.start_bytes[backward]
            if turn and size_bytes > left:
                yield turn
                turn, left = [], room_bytes
            turn.append(number)
            left -= size_bytes
        if turn:
            yield turn

    def _at(self, point: str, classes: Sequence[int], say: Callable[[str], None]) -> dict[int, Measured]:
        """Measure a block of each class at a point, but for those that PyTorch does not run there, though it runs them
        otherwise."""
        try:
            return dict.fromkeys(classes, self._run({self._measured[number]: point for number in classes}))
        except RuntimeError as error:
            if point == KEEP:
                raise
            if len(classes) > 1:
                return {n: way for number in classes for n, way in self._at(point, [number], say).items()}
            said = str(error).strip().splitlines()
            words = self._problem.layers[self._measured[classes[0]]].name
            say(f"{words}: the point {point} is left out: {type(error).__name__}: {said[0] if said else ''}")
            return {}

    def _undominated(self, number: int, ways: dict[str, Measured]) -> tuple[Point, ...]:
        """List the points of a class but for those that take no less memory and no less time than another."""
        points = [self._point(point, ways[point], self._measured[number]) for point in POINTS if point in ways]
        left = points[:1]
        for n, one in enumerate(points[1:], 1):
            others = [*left, *points[n + 1 :]]
            if not any(all(b <= a for a, b in zip(_costs(one), _costs(other), strict=True)) for other in others):
                left.append(one)
        return tuple(left)

    def _point(self, name: str, of: Measured, layer: int) -> Point:
        """Figures of a layer in one trial. Between its phases are those of the layers after it, over by then."""
        forward, backward = layer, len(self._phases) - 1 - layer
        gradients = 0
        if self._problem.micro_batches == 1:  # or they are made beside those of the passes before
            each = zip(self._problem.groups, self.layers.groups, self._waits, strict=True)
            gradients = sum(group.gradient_bytes for group, of, waits in each if waits or of.layers == (layer,))
        kept = max(0, of.end_bytes[forward] - of.start_bytes[forward])
        before = of.start_bytes[forward]
        return Point(
            name,
            of.times_us[forward],
            of.times_us[backward],
            kept,
            max(0, of.most_bytes[forward] - before - kept),
            max(0, of.most_bytes[backward] - before - kept - gradients),
        )

    def _uses(self) -> dict[nn.Parameter, tuple[int, ...]]:
        """Layers before and after the blocks that read each parameter outside of them."""
        loss, last = self._loss(), self.layers.outer[1]
        began_at, ended_at = (self._recorder.sequence_numbers[position] for position in (1, last))
        found = layers_that_read(loss, self.layers.outer_parameters, began_at, ended_at, last)
        loss.backward()
        return found

    def _loss(self) -> Any:
        with torch.autocast(self._meter.device.type, self._autocast, enabled=self._autocast is not None):
            return self.step(*self._batch.args, **self._batch.kwargs)

    def _run(self, points: dict[int, str]) -> Measured:
        self.step.schedule = self._schedule(points)
        found = []
        for n in range(_RUNS):
            self._recorder.counts_bytes = n == _COUNTING
            loss = self._loss()
            loss.backward()
            del loss  # its memory is not there when the next step starts
            found.append(self._recorder.measured(len(self._phases)))
        timed = [f.times_us for f in found[_COUNTING + 1 :]]
        return replace(found[_COUNTING], times_us=[statistics.median(times) for times in zip(*timed, strict=True)])


def _in_own_format(layers: ModelLayers, measured: set[int]) -> ModelLayers:
    """Return the layers with copies of the measured ones in the format of the master weights."""
    groups = (
        replace(of, low_precision=(False,) * len(of.parameters)) if measured.intersection(of.layers) else of
        for of in layers.groups
    )
    return replace(layers, groups=tuple(groups))


def _costs(point: Point) -> tuple[float, ...]:
    kept = point.kept_bytes
    return (
        point.forward_us + point.backward_us,
        kept,
        kept + point.forward_bytes,
        kept + point.backward_bytes,
    )


def _trial_plan(phases: Phases, group: int, *, is_there: bool) -> GroupPlan:
    if is_there:
        return GroupPlan(update="none")
    stays = tuple(Stay(use, use + 1) for use in phases.uses[group])
    return GroupPlan("streamed", update="none", stays=stays)
