"""The tries of a fit under one budget: all of them before it returns, or the last ones beside training.

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

from loadmaster.executor.memory.fit.contest import Side, best_of, next_try
from loadmaster.executor.memory.fit.phases import KNOB, PLANS, compiling
from loadmaster.executor.memory.fit.setting import AnyStep, Setting
from loadmaster.executor.memory.fit.state import Fitted
from loadmaster.executor.memory.fit.tuned_step import TunedStep, running
from loadmaster.executor.memory.fit.words import MORE
from loadmaster.executor.steps.guards import guards_of

logger = logging.getLogger(__name__)


MOST_SHARE = 0.1  # of the time since training began, that tries hold it up


class Conclude(Protocol):
    """Gives what tries have come to."""

    def __call__(self, *, is_final: bool) -> Fitted:
        """Of all tries, or of those so far."""
        ...


class Tuning:
    """What is tried under one budget.

    Args:
        work: what runs beside; closed where nothing is to be tried any more.
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
        self._has_ended = False
        self._began, self._held_s = time.perf_counter(), 0.0
        """When training began, and how long tries have held it up."""
        self._guards = guards_of(setting.model, setting.batch)

    def finish(self) -> Fitted:
        """Try all that is left; returns what it comes to."""
        while (offer := next_try(self.sides)) is not None:
            offer.run()
        return self._concluded()

    def begin(self) -> Fitted:
        """Try until a step keeps the budget; what may be faster is tried while that one trains."""
        while best_of(self.sides) is None and (offer := next_try(self.sides)) is not None:
            offer.run()
        if best_of(self.sides) is None or not self._has_more():
            return self.finish()
        fitted = self.conclude(is_final=False)
        self._work = self._work.pop_all()
        self.setting.ahead.is_beside_training = True
        step = TunedStep(running(fitted.step), lambda: self._go_on(fitted), lambda: self._finish_late(fitted))
        weakref.finalize(step, self._work.close)
        fitted.step = step
        self.setting.phases.stand_still()
        self._began = time.perf_counter()
        return fitted

    def end(self) -> None:
        """Try nothing more: what trains stays as it is."""
        self._has_ended = True
        self._work.close()

    def _go_on(self, fitted: Fitted) -> AnyStep | None:
        """Between two steps: one try, if one is ready. Whatever it raises ends the tries, and not the training."""
        try:
            if self._has_ended:
                return _take(fitted, fitted)
            if not self._is_worth_a_try() or self._is_busy():
                return None
            offer = next_try(self.sides)
            if (offer is not None and not offer.is_ready()) or not self._is_as_fitted():
                return None
            began = time.perf_counter()
            self.setting.phases.go_on()
            if offer is None:
                return _take(fitted, self._concluded())
            offer.run()
            self.setting.phases.stand_still()
            self._held_s += time.perf_counter() - began
        except Exception as error:  # noqa: BLE001 - of a planner, of a driver, or of what a compiler wrote
            said = f"No further tries: {type(error).__name__}: {error}"
            logger.warning("%s", said)
            self.end()
            fitted.report = fitted.report.replace(MORE, said)
            return _take(fitted, fitted)
        return None

    def _finish_late(self, fitted: Fitted) -> AnyStep:
        if self._has_ended:
            return _take(fitted, fitted)
        self.setting.phases.go_on()
        return _take(fitted, self.finish())

    def _concluded(self) -> Fitted:
        self._work.close()
        return self.conclude(is_final=True)

    def _is_worth_a_try(self) -> bool:
        """Whether training has gone on for so long that another try is a small part of it."""
        each_s = self.setting.phases.each_s
        next_s = max((each_s.get(compiling(side), 0.0) for side in (PLANS, KNOB)), default=0.0)
        return self._held_s + next_s <= MOST_SHARE * (time.perf_counter() - self._began)

    def _has_more(self) -> bool:
        return self._is_busy() or next_try(self.sides) is not None

    def _is_busy(self) -> bool:
        """Whether the next try is being worked out."""
        for side in self.sides:
            side.begin()
        return any(side.is_at_work() for side in self.sides)

    def _is_as_fitted(self) -> bool:
        """Whether a trial would run the step that is fitted, and no other rank waits in it."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return False
        if self.setting.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        return guards_of(self.setting.model, self.setting.batch) == self._guards


def _take(fitted: Fitted, final: Fitted) -> AnyStep:
    """What everybody holds becomes what it has come to."""
    step = running(final.step)
    vars(fitted).update(vars(final) | {"step": step})
    logger.info("%s", fitted.report)
    return step
