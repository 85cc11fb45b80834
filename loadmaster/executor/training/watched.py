"""A planned training step whose budget is held against what the user's own steps take.

A trial of a whole step would update the weights, so the first steps of the training are the trial. Where one takes more
than the budget, all that its plan did not know counts as fixed from then on, and the step is planned again before the
next one. The first step under a plan is not counted: it compiles.
"""

from __future__ import annotations

import gc
import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from loadmaster.errors import BudgetError, InputError
from loadmaster.executor.torch_private.autograd import after_backward
from loadmaster.executor.training.capture import CapturedTraining
from loadmaster.executor.training.step import TrainingStep
from loadmaster.executor.training.step_meter import CudaStepMeter, Peak, StepMeter
from loadmaster.models.fit_record import TryRecord
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.units import show_bytes

logger = logging.getLogger(__name__)

Planner = Callable[[TrainingProblem], Any]
"""Planner of a problem under the budget that it comes with, such as ``loadmaster.plan``."""

FIRST_WATCHED, LAST_WATCHED = 2, 4  # steps under each plan


@dataclass(eq=False)
class Run:
    """Steps under one plan: how many there were, and the most that the watched ones took. ``used_bytes`` count against
    the budget."""

    problem: TrainingProblem
    plan: TrainingPlan
    meter: StepMeter
    steps: int = 0
    peak_bytes: int = 0
    used_bytes: int = 0

    @property
    def is_watched(self) -> bool:
        """True if the next step is one that is held against the budget."""
        return FIRST_WATCHED <= self.steps + 1 <= LAST_WATCHED

    @property
    def is_known(self) -> bool:
        """True once a step was held against the budget."""
        return self.steps >= FIRST_WATCHED

    @property
    def excess_bytes(self) -> int:
        """Bytes used beyond those planned; negative below them."""
        return self.used_bytes - cast(int, self.plan.check["peak_bytes"])


class WatchedStep(nn.Module):
    """A training step under a plan: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``, and
    ``optimizer.step()`` after as many backward passes as gradients add up.

    Second to fourth step under each plan are held against the budget, by the allocator's peak; the statistics of
    ``torch.cuda`` start again there. A step that took more is planned again, between two steps, with a warning.

    Args:
        captured, problem, plan: the measured step, the problem under its budget, and the plan that it begins with.
        planner: plans it again.
        tries: plans that are run at most.
        fragmentation_reserve_bytes: counts against the budget beside the peak; None: reserved bytes count.
    """

    def __init__(
        self,
        captured: CapturedTraining,
        problem: TrainingProblem,
        plan: TrainingPlan,
        planner: Planner,
        *,
        tries: int = 3,
        fragmentation_reserve_bytes: int | None = 0,
    ) -> None:
        super().__init__()
        self._captured, self._planner, self._tries = captured, planner, tries
        self._reserve_bytes = fragmentation_reserve_bytes
        self.runs: list[Run] = []
        self._now: tuple[TrainingStep, ...] = ()  # in a tuple, which hides it: its parameters are the model's
        self._begin_run(problem, plan)
        self.step = self.now.step  # of the user's model and loss, whichever plan runs them

    @property
    def now(self) -> TrainingStep:
        """The step that calls run. InputError: it was released."""
        if not self._now:
            raise InputError("step", "released", "has given its model back", "Call fit again.")
        return self._now[0]

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of all gradients of the latest step before clipping; None before a step, or without clipping."""
        return self.now.grad_norm

    @property
    def device(self) -> torch.device:
        """The device that it trains on."""
        return self._captured.device

    @property
    def run(self) -> Run:
        """The run of the plan that calls run under."""
        return self.runs[-1]

    # Moves of one step to the next are not part of a compiled function around it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one batch. BudgetError: no plan of those allowed keeps the budget; the last step is whole, and
        :meth:`release` gives the model back."""
        if not torch.is_grad_enabled():
            return cast(Tensor, self.now(*args, **kwargs))
        now = self.now
        if not now.is_amid_micro_batches:
            if self.run.is_known and self.run.used_bytes > self._budget_bytes:
                now = self._plan_again()
            self.run.meter.begin(watches_memory=self.run.is_watched)
        loss = cast(Tensor, now(*args, **kwargs))
        loss.register_hook(lambda _: after_backward(self._end_pass))  # type: ignore[no-untyped-call, unused-ignore]
        return loss

    def __repr__(self) -> str:
        return f"<WatchedStep of {type(self.step.model).__name__}: {self.run.plan!r}>"

    @property
    def _budget_bytes(self) -> int:
        return self.run.plan.budget_bytes

    def _begin_run(self, problem: TrainingProblem, plan: TrainingPlan) -> None:
        assert plan.schedule is not None
        meter = CudaStepMeter(self._captured.device)
        self._now = (self._captured.step(problem, plan.schedule, partial(_mark_phase, meter)),)
        self.runs.append(Run(problem, plan, meter))

    def _end_pass(self) -> None:
        if self.now.is_amid_micro_batches:
            return
        run, is_watched = self.run, self.run.is_watched
        peak = run.meter.end()
        run.steps += 1
        if is_watched:
            run.peak_bytes = max(run.peak_bytes, peak.allocated_bytes)
            run.used_bytes = max(run.used_bytes, self._used_bytes(peak))

    def _used_bytes(self, peak: Peak) -> int:
        if self._reserve_bytes is None:
            return peak.reserved_bytes
        return peak.allocated_bytes + self._reserve_bytes

    def _plan_again(self) -> TrainingStep:
        """Plan for what the step was seen to take, and run that from now on."""
        run, budget_bytes = self.run, self._budget_bytes
        used, budget = show_bytes(run.used_bytes), show_bytes(budget_bytes)
        took = f"a step took {used} where {budget} are the budget"
        if len(self.runs) >= self._tries:
            raise BudgetError(
                f"budget_bytes: {took}, under the last of {self._tries} plans. The last step is whole: save, or call "
                f"step.release(). Ask for at least {run.used_bytes} bytes, or allow more tries.",
                budget_bytes,
                run.used_bytes,
                run.used_bytes,
            )
        problem = replace(run.problem, fixed_bytes=run.problem.fixed_bytes + run.excess_bytes)
        plan = planned(self._planner, problem, run.used_bytes)
        logger.warning("%s: it is planned again, for %s that its plan did not know", took, show_bytes(run.excess_bytes))
        self.now.release()
        self._now = ()
        gc.collect()  # of the step before: its host memory goes as the next one takes its own
        self._begin_run(problem, plan)
        return self.now

    @property
    def tries(self) -> tuple[TryRecord, ...]:
        """Record of every plan that steps were held against the budget under."""
        return tuple(self._record(run) for run in self.runs if run.is_known)

    def _record(self, run: Run) -> TryRecord:
        times_us = run.meter.times_us()[FIRST_WATCHED - 1 :]
        return TryRecord(
            budget_bytes=run.plan.budget_bytes,
            planned_peak_bytes=run.plan.check["peak_bytes"],
            planned_us=run.plan.objective or 0.0,
            used_bytes=run.used_bytes,
            peak_bytes=run.peak_bytes,
            step_us=statistics.median(times_us) if times_us else 0.0,
            kept=run.used_bytes <= run.plan.budget_bytes,
            corrected_bytes=run.problem.fixed_bytes - self._captured.problem.fixed_bytes,
        )

    def release(self) -> None:
        """Give the model back to plain PyTorch: parameters show their master weights, on the host where they are there,
        and the optimizer has its state."""
        self.now.release()
        self._now = ()


def _mark_phase(meter: StepMeter, _: int, launched: bool) -> None:
    if launched:
        meter.mark()


def planned(planner: Planner, problem: TrainingProblem, measured_bytes: int | None = None) -> TrainingPlan:
    """Plan a problem. BudgetError: no plan fits its budget; InputError: what the planner gave is no such plan."""
    plan = planner(problem)
    if not isinstance(plan, TrainingPlan):
        raise InputError("planner", type(plan).__name__, "is no plan of a training step", "Give loadmaster.plan.")
    if plan.schedule is not None:
        return plan
    needed = plan.budget_bytes + 1 if plan.infeasibility is None else plan.infeasibility.minimum_budget_bytes
    measured = "" if measured_bytes is None else f" A step took {show_bytes(measured_bytes)} under the plan before."
    raise BudgetError(
        f"budget_bytes: no plan of the whole step fits {show_bytes(plan.budget_bytes)}: at least {show_bytes(needed)} "
        f"are needed.{measured} Ask for at least {needed} bytes.",
        plan.budget_bytes,
        needed,
        measured_bytes,
    )
