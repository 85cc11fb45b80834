"""Plain PyTorch as the oracle of a planned step: the same gradients, of parameters and of what is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.executor import apply, capture
from tests.executor.memory.schedules import plan, schedule


def expect_plain_gradients(
    model: nn.Module,
    batch: tuple[Tensor, ...],
    loss: Callable[..., Tensor] | None = None,
    *,
    keep: Callable[[int], bool] = lambda i: False,
    backend: Any = "eager",
) -> None:
    """Run the model's step under a plan that keeps these results, and a copy of it without."""
    twin, given = copy.deepcopy(model), copy.deepcopy(batch)
    both = [[*m.parameters(), *(t for t in b if t.requires_grad)] for m, b in ((model, batch), (twin, given))]
    problem = capture(model, batch, loss, hardware="cpu", backend=backend)
    apply(plan(problem, schedule(problem, keep)), model, loss, backend=backend)(*batch).backward()
    (twin(*given) if loss is None else loss(twin(*given[:-1]), given[-1])).backward()
    found, expected = ([t.grad for t in tensors] for tensors in both)
    torch.testing.assert_close(found, expected)
