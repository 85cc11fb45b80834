"""Whole steps that are planned and run on the CPU, for tests of ``fit``: a problem and a planner by hand, and a meter
whose peaks a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from loadmaster.executor.training import capture as capture_module
from loadmaster.executor.training import layers as layers_module
from loadmaster.executor.training import watched as watched_module
from loadmaster.executor.training.layers import ModelLayers
from loadmaster.executor.training.step_meter import Peak
from loadmaster.models.training.checker import check
from loadmaster.models.training.limits import plain_schedule, plain_us
from loadmaster.models.training.plan import Schedule, TrainingInfeasibility, TrainingPlan
from loadmaster.models.training.problem import TrainingProblem
from tests.executor.memory.hand_planner import HandPlanner
from tests.executor.training.planned_nets import BOTH_AWAY, HOST_UPDATED, STREAMED, problem_of, schedule_of


@dataclass
class Planned:
    """Planner by hand of both kinds: for whole steps the first of a few schedules that fits, those that hold most
    first."""

    asked: list[TrainingProblem] = field(default_factory=list)
    activations: HandPlanner = field(default_factory=lambda: HandPlanner(step=1))

    def __call__(self, problem: Any) -> Any:
        if not isinstance(problem, TrainingProblem):
            return self.activations(problem)
        self.asked.append(problem)
        assert problem.budget_bytes is not None
        least = 1 << 60
        for schedule in schedules(problem):
            verdict = check(problem, schedule, problem.budget_bytes)
            if verdict.ok:
                return plan_by_hand(problem, schedule)
            least = min(least, verdict.peak_bytes)
        found = TrainingInfeasibility(least, least - problem.budget_bytes, "the middle")
        return plan_by_hand(problem, None, found)


def schedules(problem: TrainingProblem) -> list[Schedule]:
    """A few schedules of a problem, those that hold most first."""
    mixed, away = (HOST_UPDATED, STREAMED, BOTH_AWAY), (STREAMED,)
    return [plain_schedule(problem), schedule_of(problem, *mixed), schedule_of(problem, *away)]


def peak_of(problem: TrainingProblem, number: int) -> int:
    """The peak of one of the schedules."""
    return check(problem, schedules(problem)[number], 1 << 60).peak_bytes


def plan_by_hand(
    problem: TrainingProblem, schedule: Schedule | None, infeasibility: TrainingInfeasibility | None = None
) -> TrainingPlan:
    """A plan with the checker's verdict."""
    assert problem.budget_bytes is not None
    verdict = None if schedule is None else check(problem, schedule, problem.budget_bytes)
    return TrainingPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="infeasible" if verdict is None else "feasible",
        objective=None if verdict is None else verdict.objective,
        bound=None if verdict is None else verdict.objective / 2,
        gap=None if verdict is None else 0.5,
        unit="us",
        method="by hand",
        stopped_by="nothing",
        seconds={},
        solver={},
        check={"ok": False} if verdict is None else verdict.summary(),
        budget_bytes=problem.budget_bytes,
        plain_us=plain_us(problem),
        schedule=schedule,
        infeasibility=infeasibility,
    )


@dataclass
class Meters:
    """Meter that a test sets: every step takes the next of these bytes, the last one again and again."""

    peaks: list[int] = field(default_factory=lambda: [1])
    reserved: int = 0
    watched: list[bool] = field(default_factory=list)
    marks: int = 0

    def __call__(self, device: torch.device) -> Meters:
        return self

    def begin(self, *, watches_memory: bool) -> None:
        self.watched.append(watches_memory)
        self.marks = 0 if watches_memory else self.marks

    def mark(self) -> None:
        self.marks += self.watched[-1]

    def levels(self) -> list[tuple[float, int]]:
        return [(10.0 * n, 100 + n) for n in range(self.marks + 1)] if self.marks else []

    def end(self) -> Peak:
        peak = self.peaks.pop(0) if len(self.peaks) > 1 else self.peaks[0]
        return Peak(peak, self.reserved)

    def times_us(self) -> list[float]:
        return [1e6] + [200.0 + n for n in range(len(self.watched) - 1)]


def measured_by_hand(
    name: str,
    model: nn.Module,
    batch: Any,
    loss: Any,
    layers: ModelLayers,
    *_: Any,
    accumulate: int,
    clips: bool,
    say: Callable[[str], None],
    **__: Any,
) -> tuple[TrainingProblem, ModelLayers]:
    """The problem of a step that nobody runs."""
    say("measuring by hand")
    return replace(problem_of(layers, micro_batches=accumulate, clips=clips), name=name), layers


def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Let whole steps be planned for the CPU, by hand; returns their meter."""
    meters = Meters()
    monkeypatch.setattr(layers_module, "SMALL_ELEMENTS", 64)
    monkeypatch.setattr(capture_module, "MEASURED_ON", "cpu")
    monkeypatch.setattr(capture_module, "measured_problem", measured_by_hand)
    monkeypatch.setattr(capture_module, "CudaMeter", lambda device: None)
    monkeypatch.setattr(watched_module, "CudaStepMeter", meters)
    return meters
