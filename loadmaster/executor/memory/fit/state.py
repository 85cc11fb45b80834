"""State of fitting a step to a budget: what was proposed, what was run, and what it comes to."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike

from loadmaster.executor.memory.fit.any_step import AnyStep
from loadmaster.executor.memory.fit.knob import KnobTrial
from loadmaster.executor.memory.fit.plain_step import PlainStep, PlainTrial
from loadmaster.executor.memory.fit.trials import Correction, Trial, recorded
from loadmaster.executor.memory.fit.tuned_step import TunedStep
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.steps.measure import Measurement
from loadmaster.models.fit_record import FitRecord, fit_words
from loadmaster.models.memory.checker import Check
from loadmaster.models.memory.measurement import MemoryMeasurement
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.shown import one_line, remember


@dataclass(eq=False, repr=False)
class Fitted:
    """A step that keeps its budget.

    While tries go on as the step trains, all of this is of the tries so far; :meth:`finish` runs the rest at once.

    Attributes:
        step: to train with, as :func:`~loadmaster.executor.memory.run.apply.apply` returns it; or torch.compile's own
            partition under its knob, where that was faster, or nothing else kept the budget. As long as tries go on, a
            :class:`~loadmaster.executor.memory.fit.tuned_step.TunedStep`.
        plan, problem: what it runs, and the corrected problem that this is a plan for; None where it runs no plan.
        tries: every plan that was run, in order.
        chosen: which of them ``step`` is, if it is one.
        knob_tries: every value of torch.compile's knob that was run, in order.
        chosen_knob: which of them ``step`` is, if it is one.
        report: in words, which of both the step is, and what both measured.
        seconds: what each part took.
        measurement: what the plan measured when it ran, with the allocated bytes over one step; None where no plan
            runs, where the device had no room for a profiled step, and as long as tries go on.
        plain: what plain PyTorch's step measured, where ``step`` is that one: what was compiled differs from it.
    """

    step: AnyStep | PlainStep | TunedStep
    plan: MemoryPlan | None
    problem: MemoryProblem | None
    tries: tuple[Trial, ...]
    chosen: int | None
    knob_tries: tuple[KnobTrial, ...] = ()
    chosen_knob: int | None = None
    report: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    measurement: MemoryMeasurement | None = None
    plain: PlainTrial | None = None

    @property
    def is_final(self) -> bool:
        """True if nothing is left to try."""
        return not isinstance(self.step, TunedStep)

    def finish(self) -> Fitted:
        """Try now what is left to try, and return this, as it is then.

        Raises:
            InputError: precision or mode are other ones than where ``fit`` was called.
        """
        if isinstance(self.step, TunedStep):
            self.step.finish()
        return self

    @property
    def measured(self) -> Measurement:
        """Measurement of the step that the fit chose."""
        if self.plain is not None:
            return self.plain.measured
        if self.chosen_knob is not None:
            return self.knob_tries[self.chosen_knob].measured
        assert self.chosen is not None, "one of both"
        return self.tries[self.chosen].measured

    @property
    def knob(self) -> float | None:
        """The ``activation_memory_budget`` that the step is compiled under; None where it runs a plan."""
        return None if self.chosen_knob is None else self.knob_tries[self.chosen_knob].knob

    @property
    def record(self) -> FitRecord:
        """Record of the fit without the step itself, which can be written to a file."""
        tries, knob_tries = tuple(map(recorded, self.tries)), tuple(t.record for t in self.knob_tries)
        plain = None if self.plain is None else self.plain.record
        return FitRecord(self.plan, self.problem, tries, self.chosen, knob_tries, self.chosen_knob, plain=plain)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to a file: plan, corrected problem and every try; ``loadmaster.load_fit(path)`` reads it
        back, and ``apply`` takes its plan, ``KnobStep`` its knob.

        Raises:
            InputError: the path cannot be written.
        """
        self.record.save(path)

    def __repr__(self) -> str:
        record = self.record
        name = type(self.step.step.model).__name__ if self.plan is None else self.plan.name
        return one_line(self, name, fit_words(record.measured, len(self.tries) + len(self.knob_tries)))

    def _repr_html_(self) -> str:
        if self.plan is None or self.problem is None:
            return f"<p>{html.escape(self.report)}</p>"
        remember(self.problem)
        return self.plan._repr_html_()


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
    verdict: Check


@dataclass(frozen=True, eq=False)
class State:
    """State of fitting a step to one budget.

    Attributes:
        budget_bytes: what the step must keep.
        correction: of the next problem, ``margin_bytes`` among its resident bytes: they go first where no plan fits.
        trials, candidates: what was run so far, in order.
        refused: the last plan that was infeasible, and what was resident in addition to the captured bytes then.
    """

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
