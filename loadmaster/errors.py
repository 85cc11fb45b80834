"""Errors in the words a user needs: every floor raises these.

(The client adds what a service may answer: :mod:`loadmaster.api.errors`.) An *answer* is not an error: an infeasible
problem and a plan cut short by a limit come back as plans with that status. Errors are for input that cannot be used,
for solvers that break, and for bugs.
"""

from __future__ import annotations


class LoadmasterError(Exception):
    """Base of all errors that Loadmaster raises on purpose. ``exit_status`` is the command line's answer."""

    exit_status = 1


class InputError(LoadmasterError, ValueError):
    """Input that cannot be used: ``field`` is a JSON-pointer-like path (``forward[3].inputs``), ``value`` was found
    there (kept short in the message), and ``remedy`` is one imperative sentence on what to do about it."""

    exit_status = 2

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {_short(problem, 400)} (found {_short(repr(value), 80)}). {remedy}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, object, str, str]]:
        return (InputError, (self.field, self.value, self.problem, self.remedy))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


TESTED_TORCH = ("2.11", "2.14")
"""Releases of PyTorch that the tests ran with: the oldest, which pyproject.toml asks for, and the newest."""


def how_to_install(*extras: str) -> str:
    """End of a sentence such as "Install it": where, and by which command, for extras of this package."""
    # The one place to change when the package is published: every message takes it from here.
    return f"in a clone of the repository: pip install '.[{','.join(extras)}]'"


class MissingExtraError(LoadmasterError, ImportError):
    """A package of an optional extra is not installed."""

    exit_status = 2

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed. Install it {how_to_install(extra)}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return (MissingExtraError, (self.package, self.extra))


class BudgetError(LoadmasterError):
    """No plan keeps the step within its budget: none exists, or what was planned measured more.

    Attributes:
        budget_bytes: what was asked for.
        needed_bytes: what a step is known to take: ask for at least that much.
        measured_bytes: the highest bytes measured; None where no plan was found to measure.
    """

    exit_status = 3

    def __init__(self, message: str, budget_bytes: int, needed_bytes: int, measured_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.needed_bytes = needed_bytes
        self.measured_bytes = measured_bytes
        super().__init__(message)

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, int, int, int | None]]:
        return (BudgetError, (str(self), self.budget_bytes, self.needed_bytes, self.measured_bytes))


class SolverError(LoadmasterError):
    """A solve broke: the process crashed, ran out of memory, or the solver refused the model."""


class SolverKilledError(SolverError):
    """A solver was killed from outside, by a person or for want of memory: another try may well go through."""


class LimitReachedError(LoadmasterError):
    """A time, node or memory limit came before any plan was found (and before infeasibility was proved)."""

    exit_status = 4


class CancelledError(LoadmasterError):
    """The caller cancelled before any plan was found."""

    exit_status = 130


class CheckFailedError(LoadmasterError):
    """Checker and formulations disagree, a bug in Loadmaster to be reported: the independent checker refused a plan
    that a formulation produced, or accepts one that a formulation proves away."""
