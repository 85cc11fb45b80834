"""The tries of a fit under one budget: all of them before it returns, or the last ones while the step trains.

The first step that keeps the budget is there after one compilation, as torch.compile's own would be. Each other try is
one compilation more, which may make steps a few hundredths faster. So where helpers compile ahead, training begins with
the first one. Of each further try, nothing is left then but to trace, to load and to time it; and it waits until that
is a small part of the time that the step has trained, so that a short run hardly pays for them.
"""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch

from loadmaster.errors import InputError
from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.contest import Side, best_of, contest, next_try
from loadmaster.executor.memory.fit.phases import KNOB, PLANS, compiling
from loadmaster.executor.memory.fit.plain_step import PlainStep
from loadmaster.executor.memory.fit.setting import Setting
from loadmaster.executor.memory.fit.state import Fitted
from loadmaster.executor.memory.fit.tuned_step import TunedStep, running
from loadmaster.executor.memory.fit.words import MORE
from loadmaster.executor.steps.guards import differences, guards_of
from loadmaster.executor.steps.wrappers import is_among_ranks

logger = logging.getLogger(__name__)

MOST_SHARE = 0.1  # of the time since training began, that tries hold it up


class Conclude(Protocol):
    """Callable that gives the result of the tries."""

    def __call__(self, *, is_final: bool) -> Fitted:
        """The result of all tries, or of those so far."""
        ...


class Tuning:
    """Tries of all sides under one budget.

    Args:
        work: what runs in the background; closed where nothing is to be tried any more.
        conclude: what the tries so far come to; told whether they are all.
    """

    def __init__(
        self,
        setting: Setting,
        sides: Sequence[Side],
        work: contextlib.ExitStack,
        conclude: Conclude,
    ) -> None:
        self.setting, self.sides, self.conclude = setting, sides, conclude
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
        self.setting.ahead.go_on_beside_training()
        fitted.step = step = TunedStep(running(fitted.step), LateTries(self, fitted))
        weakref.finalize(step, self._work.close)
        self.setting.phases.stand_still()
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
    """Tries that are left while a step trains.

    Args:
        fitted: what everybody holds: it becomes what the tries come to.
    """

    def __init__(self, tuning: Tuning, fitted: Fitted) -> None:
        self.tuning, self.fitted = tuning, fitted
        self._guards = guards_of(tuning.setting.model, tuning.setting.batch)
        self._began, self._held_s = time.perf_counter(), 0.0

    @property
    def is_over(self) -> bool:
        """True if nothing is left to try."""
        return self.fitted.is_final

    def go_on(self) -> AnyStep | PlainStep | None:
        """Run one try between two steps, if one is ready; returns the step to run, None to stay with the one that runs.

        Whatever a try raises ends the tries, and not the training.
        """
        tuning, phases = self.tuning, self.tuning.setting.phases
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
        """Try all that is left; returns the step to run.

        Raises:
            InputError: trials would run another step than the one that is fitted.
        """
        if self.tuning.ended is not None:
            return self._stay()
        if (other := self._differs()) is not None:
            remedy = "Call it as fit was: under the same torch.autocast, the model in the same mode."
            raise InputError("finish", other, "is another call than fit's", remedy)
        self.tuning.setting.phases.go_on()
        return self._become(self.tuning.finish(), is_final=True)

    def _differs(self) -> str | None:
        """Words on what keeps a trial from running the step that is fitted; None where nothing does."""
        if is_among_ranks():
            return "torch.distributed is initialized"
        setting = self.tuning.setting
        if setting.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is recorded"
        return differences(self._guards, guards_of(setting.model, setting.batch)) or None

    def _is_worth_a_try(self) -> bool:
        """Return whether training has gone on for so long that another try is a small part of it."""
        each_s = self.tuning.setting.phases.each_s
        next_s = max((each_s.get(compiling(side), 0.0) for side in (PLANS, KNOB)), default=0.0)
        return self._held_s + next_s <= MOST_SHARE * (time.perf_counter() - self._began)

    def _stay(self) -> AnyStep | PlainStep:
        self.fitted.report = self.fitted.report.replace(MORE, f"No further tries: {self.tuning.ended}.")
        return self._become(self.fitted, is_final=True)

    def _become(self, found: Fitted, *, is_final: bool) -> AnyStep | PlainStep:
        step = running(found.step)
        vars(self.fitted).update(vars(found) | {"step": step if is_final else self.fitted.step})
        if is_final:
            logger.info("%s", self.fitted.report)
        return step
