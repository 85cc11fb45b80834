"""Under a pager the backward pass has what the forward pass drew."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import loadmaster
from loadmaster.executor import Pager
from tests.executor.memory.random_tower import OPERATORS, WIDTH, RandomTower, expect_one, shares

PLANNER = partial(loadmaster.plan, time_limit_s=0.5, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"prefetch": None}, {"planner": PLANNER}], ids=["by demand", "planned"])
def test_every_random_operator_draws_once(how):
    torch.manual_seed(0)
    model, x = RandomTower(list(OPERATORS)), torch.randn(16, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Pager(model, optimizer, budget_bytes=60 << 10, small_bytes=64, **how) as pager:
        for _ in range(5):
            expect_one(shares(model, model, x))
            optimizer.step()
    assert pager.stats[-1].planned == ("planner" in how)
