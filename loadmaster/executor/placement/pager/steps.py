"""Learning the training step, and having it planned.

The first step makes the optimizer's state. The next ones are recorded until two make the same calls: they have the same
shape. Then the planner is asked, and the plan is followed from the next step of that shape on. Where a step strays from
every plan (another batch size, another part of the model), the next ones are recorded again, until its shape came twice
or does not come back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import LoadmasterError
from loadmaster.executor.placement.pager.memory import Counts, Page, PagedMemory, least_recently_used
from loadmaster.executor.placement.pager.prefetch import Prefetcher
from loadmaster.executor.placement.pager.schedule import MOST_SHAPES, Follower, RecordedCall, Shape, Shapes, schedule_of
from loadmaster.executor.placement.recorder import Notes, name_gradients, name_resident, name_state
from loadmaster.executor.placement.trace import Cost, Trace, trace_of
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.measure import Mark, mark, seconds
from loadmaster.executor.steps.places import CallPlaces, Place
from loadmaster.executor.steps.step import Step
from loadmaster.models.placement.plan import PlacementPlan
from loadmaster.models.placement.problem import PlacementProblem, Tier

logger = logging.getLogger(__name__)

Planner = Callable[[PlacementProblem], Any]
_FOLLOWED = 0.9  # of the recorded calls: a step that makes fewer of them has strayed


@dataclass(frozen=True)
class StepStats:
    """Figures of one step. ``planned`` is the share of the plan's calls that were made, 0 without a plan; ``faults``
    are pages that an operator had to wait for, ``prefetches`` were on their way before, ``late`` ones had no room when
    they should."""

    planned: float
    faults: int
    prefetches: int
    late: int
    evictions: int
    stored_bytes: int
    loaded_bytes: int
    unforeseen: int
    peak_bytes: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Ran:
    """A call that ran: with what tensors and pages, what it made, and, while a step is recorded, when."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    key: Hashable
    given: list[Tensor]
    pages: list[Page | None]
    born: list[Page | None]
    new_bytes: int
    clock: tuple[Mark, Mark] | None


@dataclass
class Tape:
    """A step that is being recorded."""

    notes: Notes
    calls: list[RecordedCall] = field(default_factory=list)
    clocks: list[tuple[Mark, Mark]] = field(default_factory=list)

    def times_us(self) -> list[float]:
        """Time of each recorded operator, us; waits for the device."""
        return [seconds(*clock) * 1e6 for clock in self.clocks]


class Steps:
    """Course of training from step to step: records steps, has them planned, and guides what moves. ``planner`` plans a
    problem with its budget; None: there is never a plan. Pages go to ``tier()``. ``prefetcher`` brings pages where no
    plan is followed; None: they move by demand. The attribute is None while a plan is followed."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        device: torch.device,
        memory: PagedMemory,
        planner: Planner | None,
        tier: Callable[[], Tier],
        prefetcher: Prefetcher | None,
    ) -> None:
        self.stats: list[StepStats] = []
        self.problem: PlacementProblem | None = None
        self.plan: PlacementPlan | None = None
        self.refused: str | None = None
        self._model, self._optimizer, self._device, self._memory = model, optimizer, device, memory
        self._planner, self._tier = planner, tier
        self.prefetcher: Prefetcher | None = None
        self._predicting = prefetcher
        self._places = CallPlaces(Step(model, None))
        self._following = contextlib.ExitStack()
        self._tape: Tape | None = None
        self._waiting: OrderedDict[Shape, Tape] = OrderedDict()
        self._in_vain = 0
        self._shapes = Shapes()
        self._began = time.perf_counter()
        self._guide()

    # Within a step

    def expect(self, key: Hashable) -> RecordedCall | None:
        """Make the plan's moves before a call, and return the recorded call that it is; None of a stranger."""
        before = self._shapes.active
        expected = self._shapes.expect(key)
        now = self._shapes.active
        if now is not before or (now is not None and now.lost and self.prefetcher is None):
            self._guide()
        return expected

    def timed(self, run: Callable[[], Any]) -> tuple[Any, tuple[Mark, Mark] | None]:
        """Run an operator; return its result, and when it began and ended, if times are wanted."""
        if self._tape is None:
            return run(), None
        start = mark(self._device)
        return run(), (start, mark(self._device))

    def ran(self, ran: Ran, expected: RecordedCall | None) -> None:
        """Take note of a call that ran, for the plan and for the recording."""
        if expected is not None:
            self._shapes.ran(ran.pages, ran.born)
        if self._tape is not None:
            self._record(self._tape, ran)

    def _record(self, tape: Tape, ran: Ran) -> None:
        operator = tape.notes.note(ran.func, ran.args, ran.kwargs, ran.result)
        number = len(tape.notes.recording.operators) - 1
        if operator is not None:
            assert ran.clock is not None
            tape.clocks.append(ran.clock)
        operands = tuple(
            None if page is None else tape.notes.index(tensor)
            for tensor, page in zip(ran.given, ran.pages, strict=True)
        )
        births = tuple(None if page is None else self._number(tape, page) for page in ran.born)
        tape.calls.append(RecordedCall(ran.key, operands, births, ran.new_bytes, None if operator is None else number))

    def _number(self, tape: Tape, page: Page) -> int | None:
        storage = page.storage()
        return None if storage is None else tape.notes.number(storage)

    def gradients_are_there(self) -> None:
        """Name the gradients, when the optimizer is about to step."""
        if self._tape is not None:
            name_gradients(self._tape.notes, self._model)
            self._places.otherwise = Place("optimizer")

    # Between steps

    def end_step(self) -> None:
        """End a step: add its figures, and plan or record as needed."""
        planned, follower = 0.0, self._shapes.active
        if follower is not None:
            planned = follower.matched / len(follower.schedule.calls)
        now = time.perf_counter()
        self.stats.append(StepStats(planned=planned, seconds=now - self._began, **asdict(self._memory.counts)))
        self._memory.counts = Counts(peak_bytes=self._memory.used_bytes)
        followed = planned >= _FOLLOWED
        self._shapes.begin(followed=followed)
        if self._tape is not None:
            self._recorded(self._tape)
        elif self._planner is not None and not followed:
            self._in_vain = 0
            self._start_recording()
        if self._predicting is not None:
            self._predicting.end_step()
        self._guide()
        self._began = time.perf_counter()

    def close(self) -> None:
        """Stop recording and forget the plans: no more steps follow."""
        self._following.close()
        self._tape = None
        self._waiting.clear()
        self._shapes.forget()

    def _start_recording(self) -> None:
        self._following.close()
        notes = Notes(lambda tensor: tensor.device == self._device, self._places.here)
        self._places.otherwise = Place()
        self._following.enter_context(self._places.followed())
        self._tape = Tape(notes)

    def _recorded(self, tape: Tape) -> None:
        name_resident(tape.notes, self._model, Batch())
        name_state(tape.notes, self._model, self._optimizer)
        self._tape = None
        self._following.close()
        shape = tuple(call.key for call in tape.calls)
        before = self._waiting.pop(shape, None)
        if before is not None:
            self._plan(shape, before, tape)
        elif shape not in self._shapes:
            self._waiting[shape] = tape
            if len(self._waiting) > MOST_SHAPES:
                self._waiting.popitem(last=False)
        self._in_vain = self._in_vain + 1 if before is None else 0
        found_all = before is not None and not self._waiting
        gives_up = found_all or self._in_vain > 2 * MOST_SHAPES
        if self._planner is None or (gives_up and self._shapes.active is not None):
            self._waiting.clear()
        else:
            self._start_recording()

    def _plan(self, shape: Shape, before: Tape, tape: Tape) -> None:
        """Have a shape planned that was recorded twice."""
        times = [min(pair) for pair in zip(before.times_us(), tape.times_us(), strict=True)]
        try:
            trace = trace_of(
                tape.notes.recording,
                [Cost(us) for us in times],
                (self._tier(),),
                type(self._model).__name__,
                small_bytes=self._memory.small_bytes,
                budget_bytes=self._memory.budget_bytes,
            )
            self.problem = trace.problem
            assert self._planner is not None
            plan = self._planner(trace.problem)
        except LoadmasterError as error:
            self._stay(str(error))
            return
        if not isinstance(plan, PlacementPlan) or plan.moves is None:
            self._stay(f"the planner's answer is {getattr(plan, 'status', type(plan).__name__)}")
            return
        self.plan = plan
        self._follow(shape, trace, plan, tape)

    def _stay(self, reason: str) -> None:
        """Stay without a plan, and log the reason."""
        self.refused = reason
        self._planner = None
        logger.warning("no plan is followed: %s", reason)

    def _follow(self, shape: Shape, trace: Trace, plan: PlacementPlan, tape: Tape) -> None:
        assert plan.moves is not None
        follower = Follower(schedule_of(tape.calls, trace, plan.moves), self._memory)
        for page in self._memory.pages():
            number = self._number(tape, page)
            if number is not None:
                follower.is_now(number, page)
        self._shapes.add(shape, follower)

    def _guide(self) -> None:
        """Let the plan say what moves, or else the prefetcher, if there is one."""
        follower = self._shapes.active
        if follower is not None and not (follower.lost and self._predicting):
            self.prefetcher, self._memory.choice = None, follower.victim
        elif self._predicting is not None:
            if self.prefetcher is None:
                self._predicting.interrupt()
            self.prefetcher, self._memory.choice = self._predicting, self._predicting.victim
        else:
            self._memory.choice = least_recently_used
