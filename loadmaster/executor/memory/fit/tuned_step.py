"""A step to train with while others are still tried: between two of its steps it becomes the faster one.

A fit gives it as soon as some step keeps the budget. What else may win is planned and compiled meanwhile, in threads
and processes of their own; where it is ready, the next call runs it a few times before it does its own step. The model
is left as it was, see :mod:`loadmaster.executor.memory.fit.trial_run`.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, cast

import torch
from torch import nn

from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.plain_step import PlainStep


class Tries(Protocol):
    """Tries that are left while a step trains."""

    @property
    def is_over(self) -> bool:
        """True if nothing is left to try."""
        ...

    def go_on(self) -> AnyStep | PlainStep | None:
        """Try what is ready; returns the step to run from now on, None to stay with the one that runs."""
        ...

    def finish(self) -> AnyStep | PlainStep:
        """Try all that is left; returns the step to run."""
        ...


class TunedStep(nn.Module):
    """A training step that keeps a budget: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    Attributes:
        now: what it runs: the fastest step that was found so far.

    Args:
        now: the first that kept the budget.
        tries: what is left to try.
    """

    def __init__(self, now: AnyStep | PlainStep, tries: Tries) -> None:
        super().__init__()
        self.step = now.step  # of the user's model and loss, whichever step runs them
        self._now = (now,)  # in a tuple, which hides it: its parameters are the model's
        self._tries: Tries | None = tries

    @property
    def now(self) -> AnyStep | PlainStep:
        """The step that calls run: the fastest that was found so far."""
        return self._now[0]

    def finish(self) -> None:
        """Try at once what is left to try."""
        if self._tries is not None:
            self._run_from_now_on(self._tries.finish(), self._tries)

    # Tries are not part of a compiled function around it, and neither are planned steps.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one batch."""
        tries = self._tries
        if tries is not None and torch.is_grad_enabled() and (found := tries.go_on()) is not None:
            self._run_from_now_on(found, tries)
        return cast(torch.Tensor, self.now(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<TunedStep that runs {self.now!r}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyStep | PlainStep:
        """Copy the step that it runs, without the tries, on a copy of the model."""
        return copy.deepcopy(self.now, memo)

    def _run_from_now_on(self, step: AnyStep | PlainStep, tries: Tries) -> None:
        self._now = (step,)
        self._tries = None if tries.is_over else tries  # they hold all that was tried


def running(step: AnyStep | PlainStep | TunedStep) -> AnyStep | PlainStep:
    """Return the step that a tuned step runs now; any other step itself."""
    return step.now if isinstance(step, TunedStep) else step
