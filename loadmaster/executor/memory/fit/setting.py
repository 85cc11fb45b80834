"""What every trial of a fit shares: the model, its batch and loss, and how a step of them is run and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from loadmaster import live_line
from loadmaster.executor.memory.fit.phases import Phases
from loadmaster.executor.memory.fit.trial_run import ran_out, run_trial, runner, unchanged
from loadmaster.executor.memory.options import CaptureOptions
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.step import Loss

AnyStep = PlannedStep | KnobStep
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Setting:
    """A step that is fitted, and how.

    Attributes:
        fragmentation_reserve_bytes: as for :func:`~loadmaster.executor.memory.fit.fit.fit`; None: reserved bytes count.
        time_tolerance: share that a planned time may be off.
        repeats: timed steps of a trial.
        phases: what its time is spent on.
    """

    model: nn.Module
    batch: Batch
    loss: Loss | None
    options: CaptureOptions
    device: torch.device
    fragmentation_reserve_bytes: int | None
    time_tolerance: float
    repeats: int
    phases: Phases

    @property
    def reserve_bytes(self) -> int:
        """Of the budget, kept free."""
        return self.fragmentation_reserve_bytes or 0

    def used_bytes(self, measured: Measurement) -> int:
        """What counts against a budget."""
        if self.fragmentation_reserve_bytes is None:
            return measured.reserved_bytes
        return measured.peak_bytes + self.fragmentation_reserve_bytes

    def run(self, step: AnyStep, budget_bytes: int, phase: str, doing: str) -> Measurement:
        """Compile and measure a step. One for which the device has too little memory ran out.

        Args:
            phase, doing: what this counts as, and what to say meanwhile.
        """
        measured = None
        last_time = self.phases.last_time(phase)
        with (
            live_line.line(self.options.progress) as line,
            self.phases.during(phase),
            contextlib.suppress(torch.OutOfMemoryError),
        ):
            line.show(f"{doing}, {self.repeats} steps timed{last_time}", begins=True)
            measured = run_trial(
                step,
                step.step,
                self.batch,
                optimizer=self.options.optimizer,
                gradients_held=self.options.gradients_held,
                repeats=self.repeats,
            )
        return measured or ran_out(self.device, budget_bytes)

    def alone(self, step: AnyStep, look: Callable[[Callable[[], None]], Found]) -> Found:
        """Warm up, then look at one forward and backward pass; the model is as it was afterwards."""
        with unchanged(step.step, self.batch):
            run = runner(step, step.step, self.batch, gradients_held=self.options.gradients_held)
            run()
            return look(run)
