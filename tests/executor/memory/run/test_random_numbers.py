"""Random numbers that a model draws by itself, under a plan that recomputes: each is drawn once a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from loadmaster.executor import apply, capture
from tests.executor.memory.schedules import plan, schedule


class Noisy(nn.Module):
    """Its parameter times noise of every sort, as libraries write them: the loss is linear in the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64, 32) + 1)

    def forward(self, x):
        y = self.weight * x
        y = y * torch.bernoulli(torch.full_like(y, 0.9))
        y = y * (torch.rand_like(y) > 0.1)
        path = y.new_empty((y.shape[0], 1)).bernoulli_(0.9)  # timm's and torchvision's stochastic depth
        y = y * path.div_(0.9)
        y = y * (1 + 0.1 * torch.randn(y.shape))
        y = y * torch.empty_like(y).exponential_()
        y = y * torch.randint(1, 3, y.shape)
        y = nn.functional.dropout2d(y[:, :, None, None], 0.1)[:, :, 0, 0]
        return nn.functional.dropout(y, 0.1).sum()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_noise_of_every_sort_is_drawn_once_a_step(backend):
    torch.manual_seed(0)
    model, batch = Noisy(), (torch.rand(64, 32) + 1,)
    problem = capture(model, batch, hardware="cpu", backend=backend)
    step = apply(plan(problem, schedule(problem, lambda i: False)), model, backend=backend)
    losses = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        model.zero_grad()
        loss = step(*batch)
        loss.backward()
        # The gradient's noise is the forward pass's: a linear function is its gradient times its argument.
        torch.testing.assert_close((model.weight * model.weight.grad).sum(), loss.detach(), rtol=1e-4, atol=0)
        assert 0.2 < (model.weight.grad == 0).float().mean() < 0.6  # 1 - 0.9 ** 5, and a path has 32 elements
        losses.append(loss.item())
    assert losses[0] == losses[2] != losses[1]
