"""Trials of steps that nobody runs, and helpers that are no processes."""

from __future__ import annotations

from typing import ClassVar

import torch

from loadmaster.executor import KnobStep
from loadmaster.executor.memory.fit import trial_runs
from loadmaster.executor.memory.fit.ahead.job import Job
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.memory.fit.values import Comparison
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.timeline import Timeline
from loadmaster.models.memory.checker import check

PLAN_US = 100.0


def fake_trials(monkeypatch, trial):
    """Measure steps by this from now on. Nobody compiles them, not even for the curve of the winner's memory, and
    nothing can be compared with plain PyTorch's."""
    monkeypatch.setattr(trial_runs, "run_trial", trial)
    monkeypatch.setattr(Fitter, "profiled", lambda _self, _step: Timeline("cpu", (), ((0.0, 0),)))
    monkeypatch.setattr(trial_runs.TrialRuns, "compared", lambda _self, _step: Comparison(""))


class FakeRuns:
    """Measures no step: plans take PLAN_US and what they are planned to hold, the knob what a curve says."""

    def __init__(self, problem, curve=lambda knob: (0, 0.0), plan_us=PLAN_US, hidden_bytes=0):
        self.problem, self.curve, self.plan_us, self.hidden_bytes = problem, curve, plan_us, hidden_bytes
        self.knobs, self.plans = [], 0
        self.raises = {}
        self.in_turns = None
        """Factors of the times of plans and of knobs, when both are timed once more."""

    def __call__(self, step, *_args, **_kwargs):
        error = self.raises.get(type(step))
        if error is not None:
            raise error
        if isinstance(step, KnobStep):
            self.knobs.append(step.knob)
            used_bytes, us = self.curve(step.knob)
        else:
            self.plans += 1
            verdict = check(self.problem, step.plans[0].schedule, 1 << 60)
            used_bytes, us = verdict.peak_bytes + self.hidden_bytes, self.plan_us
        return Measurement(used_bytes, 0, us, used_bytes, used_bytes)

    def times_us(self, step):
        """What its trial said, but for :attr:`in_turns`."""
        if self.in_turns == "no room":
            raise torch.OutOfMemoryError
        plan_factor, knob_factor = self.in_turns or (1.0, 1.0)
        return [self.curve(step.knob)[1] * knob_factor if isinstance(step, KnobStep) else self.plan_us * plan_factor]


def halves(budget_bytes, us_at_1=50.0, slope_us=40.0):
    """Takes twice the budget at 1, and keeps it from a half on."""
    return lambda knob: (round(2 * budget_bytes * knob), us_at_1 + slope_us * (1 - knob))


class Told:
    """A helper that ends when it is told to."""

    all_of_them: ClassVar[list[Told]] = []

    def __init__(self, _threads):
        self.all_of_them.append(self)
        self.began = self.path = self.job = self.code = None
        self.signals = []
        self.is_gone = False

    def begin(self, path):
        self.began = 0.0
        self.job = Job.load(path)

    def has_ended(self):
        return self.code is not None or self.is_gone

    def send(self, number):
        self.signals.append(number)

    def end(self):
        self.is_gone = True
        return "no memory" if self.code else None
