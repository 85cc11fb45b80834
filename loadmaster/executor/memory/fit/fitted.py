"""Outcome of a fit: all tries are over before it returns, or the last ones go on while the step trains.

The first step that keeps the budget is there after one compilation, as torch.compile's own would be; each other try is
one more, which may make steps a few hundredths faster. So where helpers compile ahead, training begins with the first
one. A further try is then traced, loaded and timed only, and waits until that is a small part of the time that the step
has trained, so that a short run hardly pays for it.
"""

from __future__ import annotations

import contextlib
import copy
import html
import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Protocol, cast

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.memory.fit.contest import Side, best_of, contest, next_try
from loadmaster.executor.memory.fit.knob import KnobTrial
from loadmaster.executor.memory.fit.phases import KNOB, PLANS, compiling
from loadmaster.executor.memory.fit.report import MORE
from loadmaster.executor.memory.fit.trial_runs import TrialRuns
from loadmaster.executor.memory.fit.trials import AnyStep, PlainStep, PlainTrial, Trial
from loadmaster.executor.steps.guards import differences, guards_of
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.wrappers import is_among_ranks
from loadmaster.models.fit_record import FitRecord, fit_words
from loadmaster.models.memory.measurement import MemoryMeasurement
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.shown import one_line, remember

logger = logging.getLogger(__name__)

MOST_SHARE = 0.1  # of the time since training began, that tries hold it up


@dataclass(eq=False, repr=False)
class Fitted:
    """A step that keeps its budget.

    While tries go on as the step trains, all of this is of the tries so far; :meth:`finish` runs the rest at once.

    Attributes:
        step: to train with, as :func:`~loadmaster.executor.memory.run.apply.apply` returns it; or torch.compile's own
            partition under its knob, where that was faster, or nothing else kept the budget. As long as tries go on, a
            :class:`TunedStep`.
        plan, problem: what it runs, and the corrected problem that this is a plan for; None where it runs no plan.
        tries, knob_tries: every plan, and every value of torch.compile's knob, that was run, in order.
        chosen, chosen_knob: which of them ``step`` is, if it is one.
        report: in words, which of both the step is, and what both measured.
        seconds: what each part took.
        measurement: what the plan measured when it ran, with the allocated bytes over one step; None where no plan
            runs, where the device had no room for a profiled step, and as long as tries go on.
        plain: what plain PyTorch's step measured, where ``step`` is that one: what was compiled differs from it.
    """

    step: AnyStep | PlainStep | TunedStep
    plan: MemoryPlan | None = None
    problem: MemoryProblem | None = None
    tries: tuple[Trial, ...] = ()
    chosen: int | None = None
    knob_tries: tuple[KnobTrial, ...] = ()
    chosen_knob: int | None = None
    report: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    measurement: MemoryMeasurement | None = None
    plain: PlainTrial | None = None

    @property
    def is_final(self) -> bool:
        """True if nothing is left to try."""
        return not isinstance(self.step, TunedStep)

    def finish(self) -> Fitted:
        """Try now what is left to try, and return this, as it is then. InputError: precision or mode are other ones
        than where ``fit`` was called."""
        if isinstance(self.step, TunedStep):
            self.step.finish()
        return self

    def become(self, other: Fitted) -> None:
        """Take over all of another outcome but its step, after more tries of the same fit."""
        for each in fields(self):
            if each.name != "step":
                setattr(self, each.name, getattr(other, each.name))

    @property
    def measured(self) -> Measurement:
        """Measurement of the step that the fit chose."""
        if self.plain is not None:
            return self.plain.measured
        if self.chosen_knob is not None:
            return self.knob_tries[self.chosen_knob].measured
        assert self.chosen is not None, "one of both"
        return self.tries[self.chosen].measured

    @property
    def knob(self) -> float | None:
        """The ``activation_memory_budget`` that the step is compiled under; None where it runs a plan."""
        return None if self.chosen_knob is None else self.knob_tries[self.chosen_knob].knob

    @property
    def record(self) -> FitRecord:
        """Record of the fit without the step itself, which can be written to a file."""
        tries, knob_tries = tuple(t.record for t in self.tries), tuple(t.record for t in self.knob_tries)
        plain = None if self.plain is None else self.plain.record
        return FitRecord(self.plan, self.problem, tries, self.chosen, knob_tries, self.chosen_knob, plain=plain)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to a file: plan, corrected problem and every try; ``loadmaster.load_fit(path)`` reads it
        back, and ``apply`` takes its plan, ``KnobStep`` its knob. InputError: the path cannot be written."""
        self.record.save(path)

    def __repr__(self) -> str:
        record = self.record
        name = type(self.step.step.model).__name__ if self.plan is None else self.plan.name
        return one_line(self, name, fit_words(record.measured, len(self.tries) + len(self.knob_tries)))

    def _repr_html_(self) -> str:
        if self.plan is None or self.problem is None:
            return f"<p>{html.escape(self.report)}</p>"
        remember(self.problem)
        return self.plan._repr_html_()


class TunedStep(nn.Module):
    """A training step that keeps a budget: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Others are still tried: where one is planned and compiled, the next call runs it a few times before it does its own
    step, and the faster of both from then on. The model is left as it was, see
    :mod:`loadmaster.executor.memory.fit.trial_runs`.
    """

    def __init__(self, now: AnyStep | PlainStep, tries: LateTries) -> None:
        super().__init__()
        self.step = now.step  # of the user's model and loss, whichever step runs them
        self._now = (now,)  # in a tuple, which hides it: its parameters are the model's
        self._tries: LateTries | None = tries

    @property
    def now(self) -> AnyStep | PlainStep:
        """The step that calls run: the fastest that was found so far."""
        return self._now[0]

    def finish(self) -> None:
        """Try at once what is left to try."""
        if self._tries is not None:
            self._run_from_now_on(self._tries.finish(), self._tries)

    # Tries are not part of a compiled function around it, and neither are planned steps.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one batch."""
        tries = self._tries
        if tries is not None and torch.is_grad_enabled() and (found := tries.go_on()) is not None:
            self._run_from_now_on(found, tries)
        return cast(torch.Tensor, self.now(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<TunedStep that runs {self.now!r}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyStep | PlainStep:
        """Copy the step that it runs, without the tries, on a copy of the model."""
        return copy.deepcopy(self.now, memo)

    def _run_from_now_on(self, step: AnyStep | PlainStep, tries: LateTries) -> None:
        self._now = (step,)
        self._tries = None if tries.is_over else tries  # they hold all that was tried


def running(step: AnyStep | PlainStep | TunedStep) -> AnyStep | PlainStep:
    """Return the step that a tuned step runs now; any other step itself."""
    return step.now if isinstance(step, TunedStep) else step


class Conclude(Protocol):
    """Callable that gives the result of all tries, or of those so far."""

    def __call__(self, *, is_final: bool) -> Fitted: ...


class Tuning:
    """Tries of all sides under one budget. ``work`` runs in the background, and is closed where nothing is to be tried
    any more; ``conclude`` says what the tries so far come to."""

    def __init__(self, runs: TrialRuns, sides: Sequence[Side], work: contextlib.ExitStack, conclude: Conclude) -> None:
        self.runs, self.sides, self.conclude = runs, sides, conclude
        self._work = work
        self.ended: str | None = None
        """Reason why nothing more is tried, if something ended the tries."""

    def finish(self) -> Fitted:
        """Try all that is left; returns the final result."""
        contest(self.sides)
        self._work.close()
        return self.conclude(is_final=True)

    def begin(self) -> Fitted:
        """Try until a step keeps the budget; what may be faster is tried while that one trains."""
        while best_of(self.sides) is None and (offer := next_try(self.sides)) is not None:
            offer.run()
        if best_of(self.sides) is None or (not self.is_busy() and next_try(self.sides) is None):
            return self.finish()
        fitted = self.conclude(is_final=False)
        self._work = self._work.pop_all()
        self.runs.ahead.go_on_beside_training()
        fitted.step = step = TunedStep(running(fitted.step), LateTries(self, fitted))
        weakref.finalize(step, self._work.close)
        self.runs.phases.stand_still()
        return fitted

    def end(self, why: str) -> None:
        """Try nothing more: what trains stays as it is."""
        self.ended = why
        self._work.close()

    def is_busy(self) -> bool:
        """Return whether some side still works out its next try."""
        for side in self.sides:
            side.begin()
        return any(side.is_at_work() for side in self.sides)


class LateTries:
    """Tries that are left while a step trains; ``fitted``, which everybody holds, becomes what they come to."""

    def __init__(self, tuning: Tuning, fitted: Fitted) -> None:
        self.tuning, self.fitted = tuning, fitted
        self._guards = guards_of(tuning.runs.model, tuning.runs.batch)
        self._began, self._held_s = time.perf_counter(), 0.0

    @property
    def is_over(self) -> bool:
        """True if nothing is left to try."""
        return self.fitted.is_final

    def go_on(self) -> AnyStep | PlainStep | None:
        """Run one try between two steps, if one is ready; returns the step to run, None to stay with the one that runs.
        An error in a try ends the tries, and not the training."""
        tuning, phases = self.tuning, self.tuning.runs.phases
        if tuning.ended is not None:
            return self._stay()
        try:
            if not self._is_worth_a_try() or tuning.is_busy():
                return None
            offer = next_try(tuning.sides)
            if (offer is not None and not offer.is_ready()) or self._differs() is not None:
                return None
            began = time.perf_counter()
            phases.go_on()
            if offer is None:
                return self._become(tuning.finish(), is_final=True)
            offer.run()
            found = self._become(tuning.conclude(is_final=False), is_final=False)
            phases.stand_still()
            self._held_s += time.perf_counter() - began
            return found
        except Exception as error:  # noqa: BLE001 - of a planner, of a driver, or of what a compiler wrote
            tuning.end(f"{type(error).__name__}: {error}")
            logger.warning("no further tries: %s", tuning.ended)
            return self._stay()

    def finish(self) -> AnyStep | PlainStep:
        """Try all that is left, and return the step to run; an InputError if trials would run another step than the
        fitted one."""
        if self.tuning.ended is not None:
            return self._stay()
        if (other := self._differs()) is not None:
            remedy = "Call it as fit was: under the same torch.autocast, the model in the same mode."
            raise InputError("finish", other, "is another call than fit's", remedy)
        self.tuning.runs.phases.go_on()
        return self._become(self.tuning.finish(), is_final=True)

    def _differs(self) -> str | None:
        """Words on what keeps a trial from running the step that is fitted; None where nothing does."""
        if is_among_ranks():
            return "torch.distributed is initialized"
        runs = self.tuning.runs
        if runs.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is recorded"
        return differences(self._guards, guards_of(runs.model, runs.batch)) or None

    def _is_worth_a_try(self) -> bool:
        """Return whether training has gone on for so long that another try is a small part of it."""
        each_s = self.tuning.runs.phases.each_s
        next_s = max((each_s.get(compiling(side), 0.0) for side in (PLANS, KNOB)), default=0.0)
        return self._held_s + next_s <= MOST_SHARE * (time.perf_counter() - self._began)

    def _stay(self) -> AnyStep | PlainStep:
        self.fitted.report = self.fitted.report.replace(MORE, f"No further tries: {self.tuning.ended}.")
        return self._become(self.fitted, is_final=True)

    def _become(self, found: Fitted, *, is_final: bool) -> AnyStep | PlainStep:
        step = running(found.step)
        self.fitted.become(found)
        if is_final:
            self.fitted.step = step
            logger.info("%s", self.fitted.report)
        return step
