"""Applying a plan: a model becomes a training step that keeps, drops and recomputes what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import fx, nn

from loadmaster.errors import InputError
from loadmaster.executor.memory import backends
from loadmaster.executor.memory.emission import emit
from loadmaster.executor.memory.grouping import group
from loadmaster.executor.memory.joint import Joint
from loadmaster.executor.memory.operators import FINGERPRINT_DIGITS
from loadmaster.executor.memory.tracing import Compiler, Loss, Step, clear_errors, compiled
from loadmaster.models.memory.plan import MemoryPlan, Schedule

Backend = Literal["inductor", "eager"]

_COMPILERS: dict[str, Compiler] = {"eager": backends.eager, "inductor": backends.inductor}


class PlannedStep(nn.Module):
    """A training step under a plan: ``loss = step(*inputs); loss.backward()``.

    The model is the user's own: its parameters receive the gradients, its buffers are updated. The plan is put in
    place at the first call, for the shapes of that call; other shapes need a plan of their own.

    Raises (when called):
        InputError: the model cannot be traced, or the plan was made for another model, batch or loss.
    """

    def __init__(self, plan: MemoryPlan, model: nn.Module, loss: Loss | None, compiler: Compiler) -> None:
        super().__init__()
        self.plan = plan
        self.step = Step(model, loss)
        self._call: Callable[..., torch.Tensor] = compiled(self.step, self._partition, compiler)

    def forward(self, *inputs: Any) -> torch.Tensor:
        """The loss of one batch."""
        with clear_errors():
            return self._call(*inputs)

    def _partition(self, joint: Joint) -> tuple[fx.GraphModule, fx.GraphModule]:
        expected = self.plan.name.rpartition("-")[2]
        found = []
        for fused in (True, False):  # a plan made for one backend runs on the other, though not as fast or as small
            operators = group(joint, fused=fused)
            if expected == operators.fingerprint:
                return emit(operators, schedule_of(self.plan))
            found.append(operators.fingerprint)
        raise InputError(
            "plan.name",
            self.plan.name,
            f"was made for the graph {expected}, this step is {' or '.join(found)}",
            "Capture this model with this batch, loss and precision, and plan again.",
        )


def schedule_of(plan: MemoryPlan) -> Schedule:
    """The plan's schedule.

    Raises:
        InputError: the plan is infeasible and has none.
    """
    if plan.schedule is None:
        raise InputError("plan.status", plan.status, "has no schedule to apply", "Plan again with a larger budget.")
    return plan.schedule


def apply(
    plan: MemoryPlan, model: nn.Module, loss: Loss | None = None, *, backend: Backend = "inductor"
) -> PlannedStep:
    """A training step that runs under the plan.

    Args:
        plan: a plan for the problem that :func:`~loadmaster.executor.memory.capture.capture` made from this model,
            this loss and inputs of these shapes.
        model, loss: as they were captured.
        backend: ``inductor`` compiles the planned graphs, ``eager`` runs them operator by operator.

    Returns:
        A module: ``loss = step(*inputs)``, then ``loss.backward()`` and the optimizer's step as usual.

    Raises:
        InputError: the plan is of another kind, is infeasible, or the backend is unknown. A plan for another model
            is found out at the first call.
    """
    if plan.kind != "memory":
        raise InputError("plan.kind", plan.kind, "is not a memory plan", "Give a plan of the kind memory.")
    if backend not in _COMPILERS:
        raise InputError("backend", backend, "is unknown", f"Choose one of: {', '.join(_COMPILERS)}.")
    schedule_of(plan)
    fingerprint = plan.name.rpartition("-")[2]
    if len(fingerprint) != FINGERPRINT_DIGITS:
        raise InputError(
            "plan.name",
            plan.name,
            "does not end with the fingerprint of a captured graph",
            "Apply plans of captured problems, under the name that capture gave them.",
        )
    return PlannedStep(plan, model, loss, _COMPILERS[backend])
