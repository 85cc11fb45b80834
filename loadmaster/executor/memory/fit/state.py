"""Where fitting a step to a budget stands: what was proposed, what was run, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

from loadmaster.executor.memory.fit.trials import Correction, Trial, recorded
from loadmaster.executor.memory.run.apply import PlannedStep
from loadmaster.executor.steps.measure import Measurement
from loadmaster.models.fit_record import FitRecord, fit_words
from loadmaster.models.memory.checker import Check
from loadmaster.models.memory.plan import MemoryPlan
from loadmaster.models.memory.problem import MemoryProblem
from loadmaster.models.shown import one_line, remember


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """A step that keeps its budget.

    Attributes:
        step: to train with, as :func:`~loadmaster.executor.memory.run.apply.apply` returns it.
        plan, problem: what it runs, and the corrected problem that this is a plan for.
        tries: every plan that was run, in order.
        chosen: which of them ``step`` is.
    """

    step: PlannedStep
    plan: MemoryPlan
    problem: MemoryProblem
    tries: tuple[Trial, ...]
    chosen: int

    @property
    def measured(self) -> Measurement:
        """Of the step."""
        return self.tries[self.chosen].measured

    @property
    def record(self) -> FitRecord:
        """All of it but the step itself: what can be written down."""
        return FitRecord(self.plan, self.problem, tuple(map(recorded, self.tries)), self.chosen)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to a file: plan, corrected problem and every try; ``loadmaster.load_fit(path)`` reads it
        back, and ``apply`` takes its plan.

        Raises:
            InputError: the path cannot be written.
        """
        self.record.save(path)

    def __repr__(self) -> str:
        return one_line(self, self.plan.name, fit_words(recorded(self.tries[self.chosen]), len(self.tries)))

    def _repr_html_(self) -> str:
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
    """Where fitting stands.

    Attributes:
        budget_bytes: what the step must keep.
        correction: of the next problem, ``margin_bytes`` among its resident bytes: they go first where no plan fits.
        trials, candidates: what was run so far, in order.
        refused: the last plan that was infeasible, and what was resident beside the captured bytes then.
    """

    budget_bytes: int
    correction: Correction
    margin_bytes: int = 0
    trials: tuple[Trial, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    refused: tuple[MemoryPlan, int] | None = None

    @property
    def kept(self) -> bool:
        """Whether some step kept the budget."""
        return any(t.kept for t in self.trials)
