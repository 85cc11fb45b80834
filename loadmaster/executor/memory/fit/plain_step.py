"""Plain PyTorch's step, in place of a compiled one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.wrappers import own_module
from loadmaster.models.fit_record import PlainTryRecord


@dataclass(frozen=True)
class PlainTrial:
    """A run of plain PyTorch's step, and what it measured.

    Attributes:
        budget_bytes: the user's.
        used_bytes: what counts against the budget.
    """

    budget_bytes: int
    used_bytes: int
    measured: Measurement

    @property
    def kept(self) -> bool:
        """True if the step stayed within the budget."""
        return self.used_bytes <= self.budget_bytes

    @property
    def record(self) -> PlainTryRecord:
        """The trial as it is written to a file."""
        found = self.measured
        return PlainTryRecord(self.budget_bytes, self.used_bytes, found.peak_bytes, found.step_us, self.kept)


class PlainStep(nn.Module):
    """A training step as plain PyTorch runs it: ``loss = step(*batch)`` or ``step(**batch)``."""

    def __init__(self, model: nn.Module, loss: Loss | None = None) -> None:
        super().__init__()
        self.step = Step(own_module(model), loss)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one batch."""
        batch = self.step.batch(Batch(args, kwargs))
        return cast(torch.Tensor, self.step(*batch.args, **batch.kwargs))

    def __repr__(self) -> str:
        return f"<PlainStep of {type(self.step.model).__name__}>"
