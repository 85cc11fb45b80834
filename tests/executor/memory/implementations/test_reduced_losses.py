"""Losses that PyTorch reduces into the storage of their elements keep to the plan, and give PyTorch's bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import loadmaster
from loadmaster.executor import apply, capture, measure
from loadmaster.models.memory import plain


def probabilities(loss):
    return lambda scores, target: loss(scores.sigmoid(), target.sigmoid())


@pytest.mark.parametrize(
    "loss",
    [
        functional.mse_loss,
        lambda scores, target: functional.mse_loss(scores, target, reduction="sum"),
        lambda scores, target: functional.smooth_l1_loss(scores, target, beta=0.5),
        probabilities(functional.binary_cross_entropy),
    ],
    ids=["mse", "mse_sum", "smooth_l1", "binary_cross_entropy"],
)
def test_a_loss_keeps_to_the_planned_peak_with_pytorchs_bits(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64))
    x, target = torch.randn(2, 128, 64)
    twin = copy.deepcopy(model)
    problem = capture(model, (x, target), loss, hardware="h200", backend="eager")
    plan = loadmaster.plan(problem, budget_bytes=plain.peak_bytes(problem))
    step = apply(plan, model, loss, backend="eager")
    value, expected = step(x, target), loss(twin(x), target)
    value.backward()
    expected.backward()
    assert torch.equal(value, expected)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert value.untyped_storage().nbytes() == 4

    def whole():
        model.zero_grad(set_to_none=True)
        step(x, target).backward()

    model.zero_grad(set_to_none=True)
    measured = measure(whole, resident=[*model.parameters(), x, target], warmup=1, repeats=0)
    # The scalars of loss and its gradient are less than what an operator's bytes are rounded to.
    assert measured.peak_bytes <= plan.check["peak_bytes"] + 64
