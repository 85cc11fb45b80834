"""The step that most tests of a fit are about, captured once for each file, and a budget half-way."""

from __future__ import annotations

import pytest

from loadmaster.executor.costs import roofline
from loadmaster.executor.memory.fit.ahead import ahead
from loadmaster.executor.memory.fit.fit import Fitter
from loadmaster.executor.memory.options import CaptureOptions
from tests.executor.memory.hand_planner import keep_everything_peak, keep_nothing_peak
from tests.executor.memory.models import mlp_case


@pytest.fixture(scope="module")
def problem():
    return Fitter(*mlp_case(), CaptureOptions(costs=roofline("cpu"))).captured.problem()


@pytest.fixture
def budget(problem):
    return (keep_everything_peak(problem) + keep_nothing_peak(problem)) // 2


@pytest.fixture(autouse=True)
def few_cores(monkeypatch):
    """No helpers, whatever the machine has: each is a process that imports PyTorch."""
    monkeypatch.setattr(ahead, "cores", lambda: 1)
