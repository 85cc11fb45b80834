"""A whole training step on one GPU, planned under a byte budget and ready to train with."""

from __future__ import annotations

import html
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import AnyBatch
from loadmaster.executor.steps.step import Loss
from loadmaster.executor.training.capture import capture_step
from loadmaster.executor.training.watched import LAST_WATCHED, Planner, WatchedStep, planned
from loadmaster.models.fit_record import FitRecord, TryRecord, fit_words
from loadmaster.models.kinds import limit_of
from loadmaster.models.shown import one_line, remember
from loadmaster.models.training.measurement import TrainingMeasurement
from loadmaster.models.training.measurement import measured as measurement_of
from loadmaster.models.training.plan import TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from loadmaster.models.units import show_bytes, show_cost

logger = logging.getLogger(__name__)


class PlannedTraining:
    """A whole training step under a plan. All that it says is of the plan that runs now, and of the steps so far.

    Attributes:
        step: ``loss = planned.step(*batch)``, then ``loss.backward()``; see
            :class:`~loadmaster.executor.training.watched.WatchedStep`.
        why: the reason why the whole step is planned, in words.
    """

    def __init__(self, step: WatchedStep, why: str = "") -> None:
        self.step, self.why = step, why

    @property
    def plan(self) -> TrainingPlan:
        """The plan that the step runs."""
        return self.step.run.plan

    @property
    def problem(self) -> TrainingProblem:
        """The problem that was measured, with what steps have taught of it."""
        return self.step.run.problem

    @property
    def tries(self) -> tuple[TryRecord, ...]:
        """Record of every plan under which steps were held against the budget, in order."""
        return self.step.tries

    @property
    def chosen(self) -> int | None:
        """Number of the try that the step is; None until a step was held against the budget."""
        return len(self.tries) - 1 if self.step.run.is_known else None

    @property
    def measured(self) -> TryRecord | None:
        """Measurement of the plan that runs: the peak of the watched steps, and the median time of the latest steps.
        None until a step was held against the budget."""
        return None if self.chosen is None else self.tries[self.chosen]

    @property
    def is_final(self) -> bool:
        """True if no step is held against the budget any more."""
        return self.step.run.steps >= LAST_WATCHED

    def finish(self) -> PlannedTraining:
        """Return this, as of a plan of activations alone: trials here are the user's own steps."""
        return self

    @property
    def measurement(self) -> TrainingMeasurement | None:
        """Measurement of the plan that runs, with the bytes in use over one step; ``measurement.save(path)`` writes it
        for ``loadmaster show PLAN.json --measured FILE``. None until a watched step is over."""
        found, run = self.measured, self.step.run
        levels = run.meter.levels()
        if found is None or not found.step_us or not levels:
            return None
        return measurement_of(self.plan, "cuda", found.peak_bytes, found.step_us, levels)

    @property
    def report(self) -> str:
        """Words on what was planned, what steps so far took, and where updates run."""
        plan, measured = self.plan, self.measured
        assert plan.schedule is not None and plan.objective is not None
        bound = "" if plan.bound is None else f", no plan takes less than {show_cost(plan.bound, plan.unit)}"
        peak, budget = show_bytes(plan.check["peak_bytes"]), show_bytes(plan.budget_bytes)
        said = [self.why] if self.why else []
        said.append(f"Planned: {show_cost(plan.objective, plan.unit)}{bound}; {peak} of {budget}.")
        if measured is None:
            said.append("Measured: nothing yet; the second to fourth step are held against the budget.")
        else:
            took = show_cost(measured.step_us, plan.unit) if measured.step_us else "no time yet"
            again = len(self.step.runs) - 1
            times = {0: "", 1: " It was planned again once."}.get(again, f" It was planned again {again} times.")
            said.append(f"Measured: {took}; {show_bytes(measured.used_bytes)}.{times}")
        where = Counter(group.update for group in plan.schedule.groups)
        said.append(f"Updates: {where['device']} groups on the device, {where['host']} on the host.")
        return " ".join(said)

    @property
    def record(self) -> FitRecord:
        """Record of plan, problem and measurements without the step itself, which can be written to a file. InputError:
        no step was held against the budget yet."""
        if self.chosen is None:
            remedy = "Train two steps first, or save the plan and the problem: fitted.plan.save(path)."
            raise InputError("record", self.step.run.steps, "steps have run, and none was measured", remedy)
        return FitRecord(self.plan, self.problem, self.tries, self.chosen, kind="training")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to a file; ``loadmaster.load_fit(path)`` reads it back. InputError: as for :attr:`record`,
        or the path cannot be written."""
        self.record.save(path)

    def __repr__(self) -> str:
        planned_words = [f"budget {show_bytes(self.plan.budget_bytes)}", "not measured yet"]
        words = planned_words if self.measured is None else fit_words(self.measured, len(self.tries))
        return one_line(self, self.plan.name, words)

    def _repr_html_(self) -> str:
        remember(self.problem)
        return f"<p>{html.escape(self.report)}</p>{self.plan._repr_html_()}"


def fit_training(
    model: nn.Module,
    batch: AnyBatch,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer,
    budget_bytes: int | str,
    planner: Planner,
    device: torch.device | str = "cuda",
    clip_grad_norm: float | None = None,
    clip_grad_value: float | None = None,
    accumulate: int = 1,
    blocks: Sequence[nn.Module] | None = None,
    compiled: bool = True,
    host_memory_bytes: int | str | None = None,
    disk: str | PathLike[str] | None = None,
    tries: int = 3,
    fragmentation_reserve_bytes: int | None = 0,
    name: str | None = None,
    progress: bool | None = None,
    why: str = "",
) -> PlannedTraining:
    """Plan a whole training step under a budget of device memory: what each block keeps or computes again, where
    parameters, gradients and optimizer state are stored, when they move, and where each update runs.

    It is the part of :func:`~loadmaster.executor.fitting.fit` for whole steps, which says what the arguments mean;
    :func:`~loadmaster.executor.training.capture.capture` says how the step is measured.

    Args:
        budget_bytes: a share is of what the step takes with everything on the device.
        fragmentation_reserve_bytes: bytes, or None.
        why: the reason why the whole step is planned, for the report.

    Raises:
        BudgetError: no plan fits the budget; says how much is needed.
        InputError: an argument is wrong.
    """
    limit = limit_of("training")
    size = limit.read(budget_bytes, "budget_bytes")  # before minutes of measuring
    if tries < 1:
        raise InputError("tries", tries, "leaves nothing to run", "Allow at least one try.")
    with live_line.line(progress) as line:

        def say(text: str) -> None:
            logger.info("%s", text)
            line.show(text, begins=True)

        captured = capture_step(
            model,
            batch,
            loss,
            optimizer=optimizer,
            device=device,
            clip_grad_norm=clip_grad_norm,
            clip_grad_value=clip_grad_value,
            accumulate=accumulate,
            blocks=blocks,
            compiled=compiled,
            host_memory_bytes=host_memory_bytes,
            disk=disk,
            name=name,
            budget_bytes=None if isinstance(size, float) else size,
            say=say,
        )
        problem = captured.problem
        problem = replace(problem, budget_bytes=limit.value(budget_bytes, problem, "budget_bytes"))
        if fragmentation_reserve_bytes:
            problem = replace(problem, fixed_bytes=problem.fixed_bytes + fragmentation_reserve_bytes)
        say("planning the whole step")
        plan = planned(planner, problem)
    step = WatchedStep(
        captured, problem, plan, planner, tries=tries, fragmentation_reserve_bytes=fragmentation_reserve_bytes
    )
    fitted = PlannedTraining(step, why)
    logger.info("%s", fitted.report)
    return fitted
