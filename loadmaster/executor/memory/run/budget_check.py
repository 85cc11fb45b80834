"""Holding the first steps of a training against the budget of their plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from loadmaster.errors import BudgetError, InputError
from loadmaster.executor.torch_private.autograd import after_backward
from loadmaster.models.memory.plan import MemoryPlan

SKIPPED_STEPS = 1  # the first step compiles
CHECKED_STEPS = 3  # the steps after it: optimizer state is there from the second on


class BudgetCheck:
    """Checks, at the end of the backward pass of a few early steps, that the allocator's peak kept the budget.

    The peak is that of the whole process since the step's forward pass began: ``torch.cuda``'s peak statistics start
    again there. Of several plans the largest budget counts.
    """

    def __init__(self, plans: Sequence[MemoryPlan]) -> None:
        self.budget_bytes = max(plan.budget_bytes for plan in plans)
        self._calls = 0

    def checked(self, call: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
        """The loss of a planned call, whose backward pass raises if the budget was not kept.

        Raises:
            InputError: the step runs on another device than CUDA.
        """
        if device.type != "cuda":
            remedy = "Watch steps on CUDA, or measure trial steps with fit."
            raise InputError("enforce", str(device), "has an allocator that keeps no peak", remedy)
        self._calls += 1
        if not SKIPPED_STEPS < self._calls <= SKIPPED_STEPS + CHECKED_STEPS:
            return call()
        torch.cuda.reset_peak_memory_stats(device)
        loss = call()

        def at_the_end(_gradient: torch.Tensor) -> None:
            # The engine checks when everything of this backward pass has been launched, hence allocated.
            after_backward(lambda: self._check(device))

        loss.register_hook(at_the_end)  # type: ignore[no-untyped-call]
        return loss

    def _check(self, device: torch.device) -> None:
        peak = torch.cuda.max_memory_allocated(device)
        if peak > self.budget_bytes:
            raise BudgetError(
                f"budget_bytes: the step took {peak} bytes, its plan promises {self.budget_bytes}, "
                f"{peak - self.budget_bytes} too much. Plan with fit, which corrects what a plan does not know, "
                "count what else is on the device, or ask for a larger budget.",
                self.budget_bytes,
                peak,
                peak,
            )
