"""The loop around a planned step: calls on the user's optimizer after which plain PyTorch would do something else.

The optimizer's own hook is asked at each of its steps, and its groups of parameters before each pass. What would change
the result without a word is refused, with what to do about it.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import InputError
from loadmaster.executor.steps.optimizers import closure_of
from loadmaster.executor.training.gone import GoneGradients
from loadmaster.executor.training.updates import settings_of

MAKE_AGAIN = "Release the step (step.release()), and call fit again."


class Loop:
    """Watch over what the user's loop does between passes of a step.

    Args:
        names: of the model's parameters.
        trained, frozen: parameters that the step updates, and those that had no gradient when it was made.
        micro_batches: passes of a step.
        expect_whole: raises if a step broke amid its updates.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: dict[nn.Parameter, str],
        trained: Sequence[nn.Parameter],
        frozen: Sequence[nn.Parameter],
        micro_batches: int,
        expect_whole: Callable[[], None],
    ) -> None:
        self._optimizer, self._names, self._expect_whole = optimizer, names, expect_whole
        self._trained, self._frozen, self._members = trained, frozen, self._ids()
        self._micro_batches, self._passes, self._steps = micro_batches, 0, 0
        self._gone = GoneGradients()
        self._read: list[dict[str, Any]] = []
        self._handle = optimizer.register_step_pre_hook(self._before_optimizer)

    def remove(self) -> None:
        """End the watch."""
        self._gone.clear()
        self._handle.remove()

    def clear_gradients(self) -> None:
        """Take away what stands for gradients that are gone."""
        self._gone.clear()

    def begin_pass(self) -> None:
        """Prepare for a pass; raises InputError if the parameters are not those that the plan is of."""
        self._gone.clear()
        self._expect_members()
        for p in self._frozen:
            if p.requires_grad:
                raise InputError(
                    self._names[p], "requires_grad", "was False when the step was made: nothing updates it", MAKE_AGAIN
                )

    def end_pass(self) -> None:
        """Count a pass of a step that has more."""
        self._passes += 1

    def end_step(self, updated: Sequence[nn.Parameter]) -> None:
        """Count a step, note the settings that it read, and show the gradients of what it updated as gone."""
        self._passes, self._steps = 0, self._steps + 1
        self._read = [settings_of(group) for group in self._optimizer.param_groups]
        self._gone.show(updated)

    def _ids(self) -> list[list[int]]:
        return [[id(p) for p in group["params"]] for group in self._optimizer.param_groups]

    def _expect_members(self) -> None:
        if self._ids() == self._members:
            return
        known = {number for group in self._members for number in group}
        groups = self._optimizer.param_groups
        others = [self._names.get(p, "another") for g in groups for p in g["params"] if id(p) not in known]
        problem = "has other parameters than when the step was made, which would not be trained as they should"
        raise InputError("optimizer", ", ".join(others) or "fewer", problem, MAKE_AGAIN)

    # --- what the optimizer's hook is told

    def _before_optimizer(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Refuse a call of ``optimizer.step()`` where it should have done something."""
        self._expect_whole()
        self._gone.clear()
        self._expect_members()
        closure = closure_of(args, kwargs)
        if closure is None:
            self._expect_one_step()
            return None
        if self._steps or self._passes:
            problem = "would make a second step: the updates of the one before have run in its backward pass"
            remedy = "Make the step in the closure alone, or call optimizer.step() without one."
            raise InputError("closure", getattr(closure, "__name__", type(closure).__name__), problem, remedy)

        def whole_step() -> Any:
            loss = closure()
            self._expect_whole()
            self._gone.clear()
            self._expect_one_step()
            return loss

        if len(args) > 1:
            return (args[0], whole_step, *args[2:]), kwargs
        return args, kwargs | {"closure": whole_step}

    def _expect_one_step(self) -> None:
        """Expect that one whole step was made since the optimizer was last called, or none."""
        steps, self._steps = self._steps, 0
        changed, self._read = self._changed_settings(), []
        if self._passes:
            remedy = "Call it after all of them: leave out the last micro-batches that do not fill a step."
            problem = f"is called after {self._passes} of {self._micro_batches} micro-batches, before their update"
            raise InputError("optimizer.step()", self._passes, problem, remedy)
        for p in self._trained:
            if p.grad is not None:
                problem = "has a gradient that did not come from a whole pass of the step: nothing would update by it"
                remedy = "Call zero_grad() after a backward pass that failed, and train through the step alone."
                raise InputError(self._names[p], "grad", problem, remedy)
        if steps > 1:
            problem = "is the number of steps since the optimizer's last: each of them has updated the parameters"
            remedy = "Call optimizer.step() after each, or accumulate: fit(..., accumulate=...)."
            raise InputError("optimizer.step()", steps, problem, remedy)
        if changed:
            problem = "was changed after the updates of this step had read it, in the backward pass"
            remedy = "Change settings before loss.backward(), or after optimizer.step()."
            raise InputError("optimizer", changed, problem, remedy)

    def _changed_settings(self) -> str | None:
        for read, group in zip(self._read, self._optimizer.param_groups, strict=False):
            for name, value in settings_of(group).items():
                if name in read and not _equal(read[name], value):
                    return name
        return None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return bool(torch.equal(one, other))
    return bool(one == other)


def expect_no_scaler(gradient: float, micro_batches: int) -> None:
    """Refuse a loss that a GradScaler has multiplied, given the loss's own gradient.

    A loss with a factor of the user's own is no fault. So a GradScaler must exist, and the gradient be nearer to its
    scale than to that of a plain loss; losses divided by the number of micro-batches are plain, too.
    """
    if not math.isfinite(gradient) or gradient == 0.0:
        return
    # An object refers to its class: asking who does takes a quarter of the time of a look at every object there is.
    kinds = _with_subclasses(torch.amp.GradScaler)
    for scaler in gc.get_referrers(*kinds):
        if not (type(scaler) in kinds and scaler.is_enabled()):
            continue
        scale = float(scaler.get_scale())
        plain, scaled = (
            min(abs(math.log(abs(gradient) / (of * share))) for share in (1.0, 1.0 / micro_batches))
            for of in (1.0, scale)
        )
        if scaled <= plain:
            raise InputError(
                "loss",
                f"times {gradient:g}, with a GradScaler of scale {scale:g}",
                "is scaled, and updates that run in the backward pass would read scaled gradients",
                "Train in bfloat16, which needs no GradScaler.",
            )


def expect_number(loss: Tensor) -> None:
    """Refuse, by an InputError, a first loss that is NaN under a plan which streams weights."""
    if bool(loss.isnan().any()):
        problem = "is NaN in the first step: weights show NaN where their layers do not run, as in a penalty on all"
        remedy = "Use the optimizer's weight_decay, or a larger budget. (Plain PyTorch's loss may be NaN, too.)"
        raise InputError("loss", "nan", problem, remedy)


def _with_subclasses(kind: type[Any]) -> set[type[Any]]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))
