"""Applying a plan: a model becomes a training step that keeps, drops and recomputes what the plan says."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from loadmaster.errors import BudgetError, InputError
from loadmaster.executor.memory.implementations.registry import EVERYTHING, ImplementationFilter
from loadmaster.executor.memory.operators.groups import FINGERPRINT_DIGITS
from loadmaster.executor.memory.run.backends import Backend, expect_backend
from loadmaster.executor.memory.run.compiled_plans import CompiledPlans, NoPlanError, fingerprint_of, schedule_of
from loadmaster.executor.renamed import renamed_keywords
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.guards import Guards, differences, guards_of
from loadmaster.executor.steps.one_graph.graph_breaks import RecompileLimitError, as_one_graph, clear_errors
from loadmaster.executor.steps.resident import device_of
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.step_graph import tensors
from loadmaster.executor.steps.tracing import Mode, expect_mode
from loadmaster.executor.steps.transfers import forget_copies
from loadmaster.executor.steps.wrappers import ddp_of, own_module, standing_in
from loadmaster.executor.torch_private.autograd import after_backward
from loadmaster.models.memory.plan import MemoryPlan

Unplanned = Literal["refuse", "run"]

_MOST_KINDS = 8  # of calls without a plan, on batches of the same shapes
SKIPPED_STEPS = 1  # the first step compiles
CHECKED_STEPS = 3  # the steps after it: optimizer state is there from the second on


class BudgetCheck:
    """Checks, at the end of the backward pass of a few early steps, that the allocator's peak kept the budget. The peak
    is that of the whole process since the step's forward pass began: ``torch.cuda``'s peak statistics start again
    there. Of several plans the largest budget counts."""

    def __init__(self, plans: Sequence[MemoryPlan]) -> None:
        self.budget_bytes = max(plan.budget_bytes for plan in plans)
        self._calls = 0

    def checked(self, call: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
        """The loss of a planned call, whose backward pass raises if the budget was not kept. InputError: the step runs
        on another device than CUDA."""
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


class PlannedStep(nn.Module):
    """A training step under a plan: ``loss = step(*batch)`` or ``step(**batch)``, then ``loss.backward()``.

    The model is the user's own: its parameters receive the gradients, its buffers are updated, and it is what to
    save. The plan is put in place at the first call. A smaller batch runs under it, too: the same operators on tensors
    that are no larger. A call that becomes another graph (a larger batch, another precision, mode, frozen parameter)
    needs a plan of its own. Without gradients (``torch.no_grad``) there is nothing to plan for: the step then runs as
    plain PyTorch would run it, whatever the shapes.

    Attributes:
        unplanned: what it does with a batch that no plan is for, as for :func:`apply`.

    Raises (when called):
        InputError: the model cannot be traced, or no plan was made for this model, batch, loss and precision.
    """

    def __init__(
        self, planned: CompiledPlans, model: nn.Module, loss: Loss | None, unplanned: Unplanned, *, enforce: bool
    ) -> None:
        super().__init__()
        self.planned = planned
        self.step = Step(own_module(model), loss)
        # In a tuple, which hides it: its parameters are the model's.
        self._ddp = tuple(wrapper for wrapper in [ddp_of(model)] if wrapper is not None)
        self.unplanned = unplanned
        self._budget_check = BudgetCheck(planned.plans) if enforce else None
        self._first: Guards | None = None
        self._without: dict[Hashable, list[Guards]] = {}

    @property
    def plans(self) -> tuple[MemoryPlan, ...]:
        """Plans that the step runs under."""
        return self.planned.plans

    # Inside another compiled function the plan would be lost without a word.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of one batch."""
        forget_copies()
        for ddp in self._ddp:
            if ddp.module is not self:
                with standing_in(ddp, self):
                    return cast(torch.Tensor, ddp(*args, **kwargs))
        batch = self.step.batch(Batch(args, kwargs))
        if not torch.is_grad_enabled() or self._is_known_unplanned(batch):
            return self.planned.plain(self.step, *batch.args, **batch.kwargs)
        try:
            # PyTorch would cut the graph in pieces along the buckets of DistributedDataParallel.
            with as_one_graph(optimize_ddp=False), clear_errors():
                call = partial(self.planned.call, self.step, *batch.args, **batch.kwargs)
                held = self._budget_check
                loss = call() if held is None else held.checked(call, device_of(self.step, batch))
        except (NoPlanError, RecompileLimitError) as error:
            return self._without_plan(batch, error)
        except InputError:
            # Better reasons: the model may have been wrapped since, or the call is not one it takes.
            own_module(self.step.model)
            self.step.expect_call(batch)
            raise
        if self._first is None:
            self._first = guards_of(self.step.model, batch)
        return loss

    def __repr__(self) -> str:
        model, plans = type(self.step.model).__name__, ", ".join(map(repr, self.plans[:1]))
        more = f" and {len(self.plans) - 1} more" if len(self.plans) > 1 else ""
        return f"<PlannedStep of {model} under {plans}{more}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedStep:
        """A step of its own on a copy of the model: what is compiled belongs to one model."""
        if self._ddp:
            remedy = "Copy the model, and wrap the copy."
            raise InputError("step", "DistributedDataParallel", "cannot be copied", remedy)
        model, loss = copy.deepcopy((self.step.model, self.step.loss), memo)
        planned = CompiledPlans(self.plans, self.planned.backend, self.planned.implementations, self.planned.mode)
        return PlannedStep(planned, model, loss, self.unplanned, enforce=self._budget_check is not None)

    def _is_known_unplanned(self, batch: Batch) -> bool:
        known = self._without.get(_key(batch)) if self._without else None
        if known is None:
            return False
        now = guards_of(self.step.model, batch)
        return now in known or (self._asks_no_more(known) and now != self._first)

    def _asks_no_more(self, known: Sequence[Guards]) -> bool:
        """Return whether further kinds of calls run untraced: a Python value may be another one in every call.

        Of several plans one may still be for them.
        """
        return len(known) >= _MOST_KINDS and len(self.plans) == 1

    def _without_plan(self, batch: Batch, error: InputError) -> torch.Tensor:
        now = guards_of(self.step.model, batch)
        problem = error.problem
        if self._first is not None:
            problem += f": {differences(self._first, now) or 'the model itself changes from call to call'}"
        # That the first step has a plan says that the plans are for this model.
        if self.unplanned == "refuse" or self._first is None:
            raise InputError(error.field, error.value, problem, error.remedy)
        known = self._without.setdefault(_key(batch), [])
        known.append(now)
        further = " So will other calls on these shapes." if self._asks_no_more(known) else ""
        warnings.warn(f"Runs without a plan and its budget: {problem}.{further}", stacklevel=2)
        return self.planned.plain(self.step, *batch.args, **batch.kwargs)


def _key(batch: Batch) -> Hashable:
    return tuple(tuple(t.shape) for t in tensors(batch))


@renamed_keywords(offer="implementations")
def apply(
    plan: MemoryPlan | Sequence[MemoryPlan],
    model: nn.Module,
    loss: Loss | None = None,
    *,
    backend: Backend = "inductor",
    implementations: ImplementationFilter = EVERYTHING,
    unplanned: Unplanned = "refuse",
    enforce: bool = False,
    mode: Mode = "default",
) -> PlannedStep:
    """A training step that runs under the plan.

    Args:
        plan: a plan for the problem that :func:`~loadmaster.executor.memory.capture.capture` made from this model,
            this loss and inputs of these shapes; or several, for batches of several shapes.
        model, loss: as they were captured. The model may be wrapped in ``DistributedDataParallel``; FSDP2's
            ``fully_shard`` goes around the step that this returns. Or a block of a model, for a plan of
            :func:`~loadmaster.executor.memory.block.capture_block`.
        backend: ``inductor`` compiles the planned graphs, ``eager`` runs them operator by operator.
        implementations: the filter that the plan was captured with.
        unplanned: what to do with a batch that no plan is for (one that is larger), once a planned one has run:
            ``refuse`` it, or ``run`` it without a plan, with a warning and no word on its memory.
        enforce: hold the second to fourth step against the plan's budget: a backward pass that ends with a higher
            peak of CUDA's allocator raises a :class:`~loadmaster.errors.BudgetError`.
        mode: as for ``torch.compile``: ``reduce-overhead`` replays both graphs as CUDA graphs, so that a step of short
            kernels does not wait for their launches. Its memory stays with the graphs between steps; the loss and the
            gradients of a step are gone when the next one begins, so that gradients cannot be added up over steps. A
            plan that sends results to the host runs without them, and the log says so.

    Returns:
        A module: ``loss = step(*batch)``, or ``step(**batch)`` with a mapping, then ``loss.backward()`` and the
        optimizer's step as usual. The loss is all it returns. Gradients are
        those of plain PyTorch; where the model has dropout, those of other masks than the same seed gives there.

    Raises:
        InputError: a plan is of another kind or infeasible, the backend or the mode is unknown, or a wrapper acts
            inside the model. A plan for another model is found out at the first call.
    """
    planned = _planned(plan, backend, unplanned, implementations, mode)
    if enforce and mode == "reduce-overhead":
        problem = "sees nothing of CUDA graphs, which allocate when they are recorded"
        raise InputError("enforce", enforce, problem, "Enforce the budget in the default mode.")
    return PlannedStep(planned, model, loss, unplanned, enforce=enforce)


@renamed_keywords(offer="implementations")
def apply_to_blocks(
    plan: MemoryPlan | Sequence[MemoryPlan],
    blocks: Iterable[nn.Module],
    *,
    backend: Backend = "inductor",
    implementations: ImplementationFilter = EVERYTHING,
    unplanned: Unplanned = "refuse",
    mode: Mode = "default",
) -> list[PlannedStep]:
    """Make steps of equal blocks under one plan, to put in their places before ``fully_shard`` goes around each.

    Args:
        plan: for a problem of :func:`~loadmaster.executor.memory.block.capture_block`, or several.
        blocks: they share what is compiled, as far as they are equal.
        backend, implementations, unplanned, mode: as for :func:`apply`.

    Raises:
        InputError: as for :func:`apply`.
    """
    planned = _planned(plan, backend, unplanned, implementations, mode)
    return [PlannedStep(planned, block, None, unplanned, enforce=False) for block in blocks]


def _planned(
    plan: MemoryPlan | Sequence[MemoryPlan],
    backend: Backend,
    unplanned: Unplanned,
    implementations: ImplementationFilter,
    mode: Mode,
) -> CompiledPlans:
    plans = (plan,) if isinstance(plan, MemoryPlan) else tuple(plan)
    if not plans:
        raise InputError("plan", plans, "is no plan", "Give at least one.")
    for given in plans:
        if given.kind != "memory":
            raise InputError("plan.kind", given.kind, "is not a memory plan", "Give a plan of the kind memory.")
        schedule_of(given)
        if len(fingerprint_of(given)) != FINGERPRINT_DIGITS:
            remedy = "Apply plans of captured problems, under the name that capture gave them."
            raise InputError("plan.name", given.name, "does not end with the fingerprint of a captured graph", remedy)
    expect_backend(backend)
    expect_mode(mode)
    if unplanned not in get_args(Unplanned):
        raise InputError("unplanned", unplanned, "is unknown", f"Choose one of: {', '.join(get_args(Unplanned))}.")
    return CompiledPlans(plans, backend, implementations, mode)
