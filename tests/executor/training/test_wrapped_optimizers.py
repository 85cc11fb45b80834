"""Optimizers that wrap others: trainers' wrappers train a whole step, those with an algorithm of their own do not."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor import PlannedTraining, fit
from loadmaster.executor.memory.fit.fitter import Fitter
from loadmaster.executor.steps.optimizers import clip_at_step, own_optimizer
from loadmaster.executor.steps.resident import optimizer_state_bytes
from tests.executor.training.planned_nets import Net
from tests.executor.training.whole_steps import Planned, on_the_cpu


class HandingOn(torch.optim.Optimizer):
    """As accelerate wraps an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)  # type: ignore[assignment]
    state = property(lambda self: self.optimizer.state)  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    step.__module__, step.__qualname__ = "accelerate.optimizer", "AcceleratedOptimizer.step"


class Lookahead(torch.optim.Optimizer):
    """As timm and many others have it: weights go halfway back every other step."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str = "optimizer") -> None:
        setattr(self, name, [optimizer] if name == "optimizers" else optimizer)
        self.inner = name
        self.param_groups, self.defaults, self.state = optimizer.param_groups, optimizer.defaults, defaultdict(dict)
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["slow"] = p.detach().clone()

    def step(self, closure: Any = None) -> Any:
        inner = getattr(self, self.inner)
        return (inner[0] if isinstance(inner, list) else inner).step(closure)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("name", ["optimizer", "base_optimizer", "_base_optimizer", "optimizers"])
def test_an_algorithm_of_its_own_is_not_lost(net: Net, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch)
    wrapped = Lookahead(torch.optim.AdamW(net.parameters()), name)
    options: dict[str, Any] = {"optimizer": wrapped, "planner": Planned(), "budget_bytes": 1024, "backend": "eager"}
    with pytest.raises(InputError, match=r"wraps AdamW.*Lookahead.*plan activations alone"):
        fit(net, (torch.zeros(1, 2, dtype=torch.long),), blocks=list(net.blocks), **options)
    monkeypatch.setattr(Fitter, "fit", lambda *_, **__: "activations alone")
    assert fit(net, (torch.zeros(1, 2, dtype=torch.long),), **options) == "activations alone"


def test_trainers_wrappers_are_trained_through(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch)
    own = torch.optim.AdamW(net.parameters())
    wrapped = HandingOn(HandingOn(own))
    scheduler = torch.optim.lr_scheduler.StepLR(own, 1)  # patches the step of the instance
    assert own_optimizer(wrapped) is own
    batch = (torch.randint(0, 40, (2, 3)),)
    options: dict[str, Any] = {"planner": Planned(), "budget_bytes": "100%", "backend": "eager"}
    fitted = fit(net, batch, optimizer=wrapped, blocks=list(net.blocks), **options)
    assert isinstance(fitted, PlannedTraining)
    fitted.step(*batch).backward()
    wrapped.step()
    scheduler.step()
    assert own.state_dict()["state"][0]["step"] == 1


def test_state_of_wrapper_and_wrapped_counts() -> None:
    model = nn.Linear(64, 64)
    own = torch.optim.SGD(model.parameters(), momentum=0.9)
    weights = 4 * (64 * 64 + 64)
    assert optimizer_state_bytes(own) == optimizer_state_bytes(HandingOn(own)) == weights
    assert optimizer_state_bytes(Lookahead(own)) == 2 * weights
    model(torch.ones(1, 64)).sum().backward()
    own.step()
    assert optimizer_state_bytes(HandingOn(own)) == weights
    assert optimizer_state_bytes(Lookahead(own)) == 2 * weights


def test_a_wrapper_without_hooks_clips() -> None:
    model = nn.Linear(3, 1, bias=False)
    wrapped = Lookahead(torch.optim.SGD(model.parameters(), lr=1.0))
    clip_at_step(wrapped, 1.0)
    before = model.weight.detach().clone()
    model(torch.tensor([[30.0, 0.0, 40.0]])).sum().backward()
    wrapped.step()
    torch.testing.assert_close(before - model.weight, torch.tensor([[0.6, 0.0, 0.8]]))
