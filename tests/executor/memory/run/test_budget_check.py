"""The first steps of a training are held against the plan's budget, at the end of their backward passes."""

from __future__ import annotations

import pytest
import torch

from loadmaster.errors import BudgetError, InputError
from loadmaster.executor import apply, capture
from loadmaster.executor.memory.run import apply as applying
from tests.executor.memory.models import mlp_case
from tests.executor.memory.schedules import plan, schedule

BUDGET = 1000


@pytest.fixture
def allocator(monkeypatch):
    """CUDA's peak statistics, told by the test."""

    class Allocator:
        peaks: list[int] = []  # noqa: RUF012
        resets = 0

        def reset(self, _device):
            self.resets += 1

        def peak(self, _device):
            return self.peaks[self.resets - 1]

    told = Allocator()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", told.reset)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", told.peak)
    monkeypatch.setattr(applying, "device_of", lambda *_: torch.device("cuda"))
    return told


def enforced():
    model, inputs, loss = mlp_case()
    problem = capture(model, inputs, loss, hardware="cpu", backend="eager")
    chosen = plan(problem, schedule(problem, lambda i: True), budget_bytes=BUDGET)
    return apply(chosen, model, loss, backend="eager", enforce=True), model, inputs


def test_a_step_beyond_its_budget_is_an_error_that_names_both(allocator):
    step, model, inputs = enforced()
    allocator.peaks = [BUDGET, BUDGET + 24]
    for _ in range(2):
        step(*inputs).backward()
    assert allocator.resets == 1  # the first step compiles
    with pytest.raises(BudgetError, match=r"took 1024 bytes, its plan promises 1000, 24 too much") as found:
        (step(*inputs) / 4).backward()
    assert found.value.needed_bytes == 1024
    assert all(p.grad is not None for p in model.parameters())


def test_later_steps_are_left_alone(allocator):
    step, _, inputs = enforced()
    allocator.peaks = [BUDGET] * 3
    for _ in range(6):
        step(*inputs).backward()
    assert allocator.resets == 3


def test_an_allocator_without_a_peak_is_refused():
    step, _, inputs = enforced()
    with pytest.raises(InputError, match="keeps no peak"):
        step(*inputs)
