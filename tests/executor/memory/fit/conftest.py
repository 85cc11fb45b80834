"""The step that most tests of a fit are about, captured once for each file, and a budget half-way."""

from __future__ import annotations

import pytest

from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.capture import CaptureOptions
from loadmaster.executor.memory.fit import trial_runs
from loadmaster.executor.memory.fit.ahead import ahead
from loadmaster.executor.memory.fit.fitter import Fitter
from tests.executor.memory.fit.fakes import FakeRuns, Told, fake_trials
from tests.executor.memory.hand_planner import keep_everything_peak, keep_nothing_peak
from tests.executor.memory.models import mlp_case


@pytest.fixture(scope="module")
def problem():
    return Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu"))).capture().captured.problem()


@pytest.fixture
def budget(problem):
    return (keep_everything_peak(problem) + keep_nothing_peak(problem)) // 2


@pytest.fixture(autouse=True)
def few_cores(monkeypatch):
    """No helpers, whatever the machine has: each is a process that imports PyTorch."""
    monkeypatch.setattr(ahead, "cores", lambda: 1)


@pytest.fixture
def helpers(monkeypatch):
    """As many as two may run, none of which is a process."""
    Told.all_of_them.clear()
    monkeypatch.setattr(ahead, "cores", lambda: 2 * ahead.CORES_EACH)
    monkeypatch.setattr(ahead, "Helper", Told)
    return Told.all_of_them


@pytest.fixture
def runs(monkeypatch, problem):
    fake = FakeRuns(problem)
    fake_trials(monkeypatch, fake)
    monkeypatch.setattr(trial_runs.TrialRuns, "times_us", lambda _self, step: fake.times_us(step))
    return fake
