"""A training problem, measured: trial steps of the model tell the time and the bytes of each layer's phases.

The trials run through :class:`~loadmaster.executor.training.step.TrainingStep` itself: first with all blocks
checkpointed, then, at each of the other points, with one block of each class. Classes take turns where the budget has
no room for all of them at once. One more trial computes the loss in chunks. Gradients are dropped as they are made, and
nothing is updated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.host_link import HOST_SHARE, host_bytes
from loadmaster.executor.steps.resident import allocated_bytes
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.unchanged import unchanged
from loadmaster.executor.training.copies import Packing
from loadmaster.executor.training.layers import ModelGroup, ModelLayers, copy_format, kind_of
from loadmaster.executor.training.meter import Mark, Meter
from loadmaster.executor.training.points import BLOCK_POINTS, CHECKPOINT, CHUNKED_LOSS, KEEP, POINTS
from loadmaster.executor.training.rates import Rates, measured_rates
from loadmaster.executor.training.step import TrainingStep
from loadmaster.executor.training.updates import moving, states_like
from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem

# Of each trial: the first compiles and fills the allocator's cache, the second counts bytes. That takes the processor
# longer than it takes to launch a small block, so the others are timed.
_RUNS, _COUNTING = 5, 1
_MOVE_US = 30.0  # beside the bytes: gradients of a group move tensor by tensor, all else at once


def measured_problem(
    name: str,
    model: nn.Module,
    batch: Batch,
    loss: Loss | None,
    layers: ModelLayers,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    *,
    autocast: torch.dtype | None,
    accumulate: int,
    clips: bool,
    compiled: bool,
    budget_bytes: int | None = None,
    say: Callable[[str], None],
) -> TrainingProblem:
    """Measure a model's training problem on a device. The model, its gradients and random state stay as they were.

    Args:
        meter: of the device.
        budget_bytes: what trials should not exceed, beyond what they must take; None: what the device has.

    Raises:
        InputError: the model does not fit the device even with every block checkpointed, or a block does not do the
            same when it runs again.
    """
    copies = copy_format(autocast, accumulate)
    groups = [_group(of, optimizer, copies) for of in layers.groups]
    class_of = _class_of(layers)
    problem = TrainingProblem(
        name=name,
        layers=tuple(Layer(words, number) for words, number in zip(layers.names, class_of, strict=True)),
        classes=(),
        groups=tuple(groups),
        host=Tier("host", 1.0, 1.0),
        micro_batches=accumulate,
        clip_grad_norm=clips,
    )
    with _told(model, meter), _as_before(Step(model, loss), batch, meter.device) as set_aside:
        say("measuring updates and moves")
        rates = measured_rates(optimizer, meter, copies)
        trials = Trials(model, batch, loss, layers, problem, optimizer, meter, autocast=autocast, compiled=compiled)
        try:
            found = trials.measured(budget_bytes, say)
        finally:
            trials.step.detach()
    # Gradients and state that the user has already are those of the step.
    states = [t for state in optimizer.state.values() for t in tensors(state)]
    taken_over = allocated_bytes(t for t in (*set_aside, *states) if t.device == meter.device)
    cast_bytes = _cast_bytes(layers, copies)
    return replace(
        problem,
        classes=tuple(
            LayerClass(f"class {n}", tuple(_with_room(point, cast_bytes) for point in points))
            for n, points in enumerate(found)
        ),
        groups=tuple(_timed(of, group, rates) for of, group in zip(layers.groups, groups, strict=True)),
        host=Tier("host", rates.to_host_gbps, rates.from_host_gbps, _MOVE_US, int(HOST_SHARE * host_bytes())),
        fixed_bytes=max(0, trials.fixed_bytes - taken_over),
    )


def _group(of: ModelGroup, optimizer: torch.optim.Optimizer, copies: torch.dtype | None) -> Group:
    weights = Packing(of.parameters, [p.dtype for p in of.parameters]).size_bytes
    copy_bytes = Packing(of.parameters, of.copy_dtypes(copies)).size_bytes
    found = Group(of.name, of.layers, weights, copy_bytes)
    if of.updated_by is None:
        return found
    like = states_like(optimizer, of.updated_by, of.parameters)
    moved = [like[n][key] for n, key in moving(like)]
    state = Packing(moved, [t.dtype for t in moved]).size_bytes
    return replace(found, gradient_bytes=weights, copy_gradient_bytes=copy_bytes, state_bytes=state)


def _cast_bytes(layers: ModelLayers, copies: torch.dtype | None) -> int:
    """Most bytes of a group's gradients in the format of its master weights, of those that copies have in another
    one: an update on the device casts them."""
    return max(
        (
            sum(
                p.numel() * p.element_size()
                for p, dtype in zip(of.parameters, of.copy_dtypes(copies), strict=True)
                if dtype != p.dtype
            )
            for of in layers.groups
        ),
        default=0,
    )


def _with_room(point: Point, cast_bytes: int) -> Point:
    """Return a point that has room for an update's cast after each phase: what the phase itself took is free then."""
    return replace(
        point,
        forward_bytes=max(point.forward_bytes, cast_bytes),
        backward_bytes=max(point.backward_bytes, cast_bytes),
    )


def _timed(of: ModelGroup, group: Group, rates: Rates) -> Group:
    if of.updated_by is None:
        return group
    count = sum(p.numel() for p in of.parameters)
    return replace(group, update_us=rates.device_us * count, host_update_us=rates.host_us * count)


def _class_of(layers: ModelLayers) -> list[int]:
    """Number the classes of layers: blocks of one type with parameters of the same shapes do the same."""
    known: dict[Any, int] = {"before": 0}
    numbers = [known.setdefault(kind_of(block), len(known)) for block in layers.blocks]
    return [0, *numbers, len(known)]


@dataclass(frozen=True)
class Measured:
    """One trial step. Lists are of phases: times, bytes at their start and end, and at most; without weights that come
    and go."""

    times_us: list[float]
    start_bytes: list[int]
    end_bytes: list[int]
    most_bytes: list[int]


class _Recorder:
    """Callback of a step's positions, which marks them, and drops the gradients that are there by then."""

    def __init__(self, meter: Meter, parameters: Sequence[nn.Parameter]) -> None:
        self._meter, self._parameters = meter, parameters
        self.step: TrainingStep | None = None
        self.counts_bytes = True
        self._marks: dict[tuple[int, bool], tuple[Mark, int]] = {}

    def __call__(self, position: int, launched: bool) -> None:
        if self.step is None:
            return
        if not launched:
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
    """Trial steps of a model. ``fixed_bytes`` are there whatever runs, once it is measured."""

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
        self._problem = problem
        self._outer = {0, len(layers.names) - 1}
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
            layers,
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
        own_gradients = sum(g.gradient_bytes for g in self._problem.groups if g.layers == (layer,))
        kept = max(0, of.end_bytes[forward] - of.start_bytes[forward])
        before = of.start_bytes[forward]
        return Point(
            name,
            of.times_us[forward],
            of.times_us[backward],
            kept,
            max(0, of.most_bytes[forward] - before - kept),
            max(0, of.most_bytes[backward] - before - kept - own_gradients),
        )

    def _run(self, points: dict[int, str]) -> Measured:
        self.step.schedule = self._schedule(points)
        found = []
        for n in range(_RUNS):
            self._recorder.counts_bytes = n == _COUNTING
            with torch.autocast(self._meter.device.type, self._autocast, enabled=self._autocast is not None):
                loss = self.step(*self._batch.args, **self._batch.kwargs)
            loss.backward()
            del loss  # its memory is not there when the next step starts
            found.append(self._recorder.measured(len(self._phases)))
        timed = [f.times_us for f in found[_COUNTING + 1 :]]
        return replace(found[_COUNTING], times_us=[statistics.median(times) for times in zip(*timed, strict=True)])


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


@contextmanager
def _as_before(step: Step, batch: Batch, device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Give model, gradients and random state back as they were; gives the gradients that are set aside meanwhile.
    Parameters' own memory is held, and shown again: trials move what they show, and write to none of it."""
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        unchanged(step, batch, writes_parameters=False) as set_aside,
    ):
        shown = [(t, t.data) for t in (*step.parameters(), *step.buffers())]
        try:
            yield set_aside
        finally:
            for tensor, data in shown:
                tensor.data = data


@contextmanager
def _told(model: nn.Module, meter: Meter) -> Iterator[None]:
    """Say in the user's words that a trial does not fit, or that a block does something else when it runs again."""
    is_there = all(p.device == meter.device for p in model.parameters())
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "Give a smaller batch, or name smaller blocks: blocks=[...]."
        if is_there:
            remedy = f"Call model.cpu() first, so that weights come as they are needed. {remedy}"
        problem = "does not fit the device in a trial step, with one block at most that is not checkpointed"
        raise InputError("model", type(model).__name__, problem, remedy) from error
    except CheckpointError as error:
        remedy = "Turn off what it remembers between two calls, such as a cache (use_cache=False)."
        raise InputError(
            "model", str(error).splitlines()[0], "does not do the same when it runs again", remedy
        ) from error
