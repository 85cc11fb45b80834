"""Steps that a fit tries, planned or as plain PyTorch runs them, and what each trial measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from loadmaster.errors import BudgetError
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.memory.run.knob_step import KnobStep
from loadmaster.executor.steps.batch import Batch
from loadmaster.executor.steps.measure import Measurement
from loadmaster.executor.steps.step import Loss, Step
from loadmaster.executor.steps.wrappers import own_module
from loadmaster.models.fit_record import PlainTryRecord, TryRecord
from loadmaster.models.memory.checker import MemoryCheck
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.units import show_mib

AnyStep = PlannedStep | KnobStep
"""Compiled step that a fit tries."""


@dataclass(frozen=True)
class Correction:
    """Correction of a captured problem by what trials have taught. ``resident_bytes`` are held in addition to what was
    captured, through the whole step (negative: less is held); ``products`` and ``moves`` are factors of the times of
    library kernels, and of all others."""

    resident_bytes: int = 0
    products: float = 1.0
    moves: float = 1.0

    def plus(self, resident_bytes: int) -> Correction:
        """The correction with so many more resident bytes."""
        return replace(self, resident_bytes=self.resident_bytes + resident_bytes)


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


@dataclass(frozen=True)
class StepTrial:
    """One step and what running it measured. Its ``used_bytes`` count against the user's budget: the measured peak with
    the fragmentation reserve, or what the allocator reserved."""

    budget_bytes: int
    used_bytes: int
    measured: Measurement

    @property
    def kept(self) -> bool:
        """True if the step stayed within the budget."""
        return not self.measured.ran_out and self.used_bytes <= self.budget_bytes

    @property
    def figures(self) -> dict[str, Any]:
        """Fields that the records of all trials have."""
        bytes_and_time = {"peak_bytes": self.measured.peak_bytes, "step_us": self.measured.step_us}
        return {"budget_bytes": self.budget_bytes, "used_bytes": self.used_bytes, "kept": self.kept, **bytes_and_time}


@dataclass(frozen=True)
class PlainTrial(StepTrial):
    """Plain PyTorch's step and what running it measured."""

    @property
    def record(self) -> PlainTryRecord:
        """The trial as it is written to a file."""
        return PlainTryRecord(**self.figures)


@dataclass(frozen=True)
class Trial(StepTrial):
    """One plan and what running it measured. ``correction`` is that of the problem that was planned; planned peak and
    time are as the checker replays the plan."""

    correction: Correction
    planned_peak_bytes: int
    planned_us: float

    @property
    def excess_bytes(self) -> int:
        """Measured bytes less the planned peak; negative below it."""
        return self.used_bytes - self.planned_peak_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes held in addition to what was captured, as measured; a reserve counts as held."""
        return self.correction.resident_bytes + self.excess_bytes

    @property
    def time_error(self) -> float:
        """Measured over planned step time, less one; 0 where no step was over."""
        return self.record.time_error

    @property
    def record(self) -> TryRecord:
        """The trial as it is written to a file."""
        planned: dict[str, Any] = {"planned_peak_bytes": self.planned_peak_bytes, "planned_us": self.planned_us}
        corrected_bytes, ran_out = self.correction.resident_bytes, self.measured.ran_out
        return TryRecord(**self.figures, **planned, corrected_bytes=corrected_bytes, ran_out=ran_out)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A step that was run, and what it measured."""

    step: PlannedStep
    plan: MemoryPlan
    problem: MemoryProblem
    measured: Measurement


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan to run, and how the checker replays it."""

    problem: MemoryProblem
    plan: MemoryPlan
    verdict: MemoryCheck


@dataclass(frozen=True, eq=False)
class State:
    """State of fitting a step to one budget. ``correction`` is that of the next problem, with ``margin_bytes`` among
    its resident bytes: they go first where no plan fits. ``refused`` is the last plan that was infeasible, and what was
    resident in addition to the captured bytes then."""

    budget_bytes: int
    correction: Correction
    margin_bytes: int = 0
    trials: tuple[Trial, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    refused: tuple[MemoryPlan, int] | None = None

    @property
    def kept(self) -> bool:
        """True if some step kept the budget."""
        return any(t.kept for t in self.trials)


def infeasible(plan: MemoryPlan, extra_bytes: int, tries: Sequence[Trial]) -> BudgetError:
    """Error that says that no plan exists for the problem as corrected, with ``extra_bytes`` resident in addition to
    what was captured: reserves, and what trials measured too much."""
    found = plan.infeasibility
    needed = plan.budget_bytes + 1 if found is None else found.minimum_budget_bytes
    why = "" if found is None else f" at {found.where}"
    beside = f", of which {show_mib(extra_bytes)} are kept for what no plan knows" if extra_bytes else ""
    measured = min((t.used_bytes for t in tries if not t.measured.ran_out), default=None)
    ran = "" if measured is None else f" The best of the plans that were run measured {show_mib(measured)}."
    message = (
        f"budget_bytes: no plan fits {show_mib(plan.budget_bytes)}: a step needs at least "
        f"{show_mib(needed)}{why}{beside}.{ran} Ask for at least {needed} bytes."
    )
    return BudgetError(message, plan.budget_bytes, needed, measured)


def broken(tries: Sequence[Trial]) -> BudgetError:
    """Error that says that every plan that was run measured more than the budget."""
    best = min(tries, key=lambda t: (t.measured.ran_out, t.used_bytes))
    found = best.measured
    if found.ran_out:
        message = (
            f"budget_bytes: no plan of {len(tries)} kept {show_mib(best.budget_bytes)}: the device ran out of memory "
            f"where {show_mib(best.planned_peak_bytes)} were planned. Give a smaller budget, or free what others hold."
        )
        return BudgetError(message, best.budget_bytes, best.used_bytes)
    rounding = found.peak_bytes - found.requested_bytes
    beside = best.used_bytes - found.peak_bytes
    unknown = best.excess_bytes - rounding - beside
    message = (
        f"budget_bytes: no plan of {len(tries)} kept {show_mib(best.budget_bytes)}: the best measured "
        f"{show_mib(best.used_bytes)} where {show_mib(best.planned_peak_bytes)} were planned. Of the difference, "
        f"workspaces and temporaries that no plan knows took {show_mib(unknown)}, the allocator's rounding "
        f"{show_mib(rounding)}, and fragmentation {show_mib(beside)}. "
        f"Ask for at least {best.used_bytes} bytes, or allow more tries."
    )
    return BudgetError(message, best.budget_bytes, best.used_bytes, best.used_bytes)
