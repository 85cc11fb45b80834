"""A training step as torch.compile has it, under its own knob: what plans are held against, and runs where it wins.

``torch._functorch.config.activation_memory_budget`` tells torch.compile's partition how much of the activations to
keep: 1 what makes the step fastest, 0 as if the whole step were checkpointed. It is read when the step is compiled, so
that each call sets it for as long as the call takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.tracing import Before, Mode, compiled_plainly, expect_mode
from loadmaster.executor.steps.wrappers import ddp_of, own_module
from loadmaster.executor.torch_private.functorch import functorch_config


class KnobStep(nn.Module):
    """A training step under torch.compile's own partition: ``loss = step(*batch)`` or ``step(**batch)``.

    Batches of other shapes and modes are compiled again under the same knob. No budget is promised. Random numbers are
    drawn once a step, unlike under PyTorch's setting alone. ``before`` is called before each half of it is compiled.

    Args:
        model, loss, mode: as for :func:`~loadmaster.executor.memory.run.apply.apply`.
        knob: the ``activation_memory_budget``, from 0 to 1.

    Raises:
        InputError: the knob is out of range, the mode is unknown, or a wrapper is around the model or inside it.
    """

    def __init__(self, model: nn.Module, loss: Loss | None = None, *, knob: float, mode: Mode = "default") -> None:
        super().__init__()
        expect_mode(mode)
        if not 0.0 <= knob <= 1.0:
            raise InputError("knob", knob, "is no share", "Give an activation_memory_budget from 0 to 1.")
        if ddp_of(model) is not None:
            remedy = "Wrap the step instead: DistributedDataParallel(KnobStep(model, loss, knob=...))."
            raise InputError("model", "DistributedDataParallel", "would be left out of the step", remedy)
        self.step = Step(own_module(model), loss)
        self.knob = knob
        self.mode = mode
        self.before: Before = lambda _half: None
        self._call = compiled_plainly(mode, lambda half: self.before(half))

    # Inside another compiled function the knob would be that function's.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one batch."""
        batch = self.step.batch(Batch(args, kwargs))
        with functorch_config.patch(activation_memory_budget=self.knob):
            return self._call(self.step, *batch.args, **batch.kwargs)

    def run_by(self, call: Callable[..., torch.Tensor]) -> None:
        """Run this call from now on, instead of what :func:`compiled_plainly` gives for the mode."""
        self._call = call

    def __repr__(self) -> str:
        return f"<KnobStep of {type(self.step.model).__name__}: activation_memory_budget {self.knob:.3g}>"
