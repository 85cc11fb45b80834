"""What came of fitting a step to a limit by measurement: the plan, its corrected problem, and what every try measured.

It is what is left of a fitted step without the model: written where it was fitted, read anywhere. The plan of a record
is applied as any plan is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.errors import InputError
from loadmaster.models.documents import Document, expect_problem, load_document, read, write
from loadmaster.models.envelope import Plan
from loadmaster.models.fields import LARGEST_BYTES, READING, Bounds, Index, Json, Size
from loadmaster.models.kind import Problem
from loadmaster.models.kinds import read_plan, read_problem, write_plan, write_problem
from loadmaster.models.shown import one_line, save_document
from loadmaster.models.units import show_bytes, show_cost

FIT_SCHEMA: Literal["loadmaster/fit/1"] = "loadmaster/fit/1"

_Delta = Annotated[int, Bounds(ge=-LARGEST_BYTES, le=LARGEST_BYTES)]
_Time = Annotated[float, Bounds(ge=0, le=1e18)]


@dataclass(frozen=True)
class TryRecord:
    """One plan that was run.

    Attributes:
        planned_peak_bytes, planned_us: as the checker replays it.
        used_bytes: what counts against the budget, as measured.
        peak_bytes, step_us: measured.
        corrected_bytes: held beside what was captured, in the problem that was planned.
        ran_out: the device ran out of memory: bytes are what the step takes at least.
    """

    budget_bytes: Size
    planned_peak_bytes: Size
    planned_us: _Time
    used_bytes: Size
    peak_bytes: Size
    step_us: _Time
    kept: bool
    corrected_bytes: _Delta = 0
    ran_out: bool = False


@dataclass(frozen=True)
class _FitDocument:
    kind: str
    chosen: Index
    tries: Annotated[tuple[TryRecord, ...], Bounds(min_length=1)]
    plan: Mapping[str, Json]
    problem: Mapping[str, Json]

    __pydantic_config__: ClassVar = READING


@dataclass(frozen=True, repr=False)
class FitRecord:
    """A fitted step on paper.

    Attributes:
        plan, problem: what the step runs, and the corrected problem that this is a plan for.
        tries: every plan that was run, in order.
        chosen: which of them the step is.
    """

    plan: Plan
    problem: Problem
    tries: tuple[TryRecord, ...]
    chosen: int

    @property
    def measured(self) -> TryRecord:
        """Of the step."""
        return self.tries[self.chosen]

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file; ``loadmaster.load_fit(path)`` reads it back.

        Raises:
            InputError: the path cannot be written.
        """
        save_document(path, write_fit(self))

    def __repr__(self) -> str:
        return one_line(self, self.plan.name, fit_words(self.measured, len(self.tries)))


def fit_words(chosen: TryRecord, tries: int) -> list[str]:
    """A fitted step in a few words: what it was to keep, and what it measured."""
    return [
        f"budget {show_bytes(chosen.budget_bytes)}",
        f"measured {show_bytes(chosen.peak_bytes)}",
        f"step {show_cost(chosen.step_us, 'us')}",
        "1 try" if tries == 1 else f"{tries} tries",
    ]


def write_fit(record: FitRecord) -> dict[str, Any]:
    """The document of a record."""
    plan, problem = write_plan(record.plan), write_problem(record.problem)
    return write(FIT_SCHEMA, _FitDocument(record.plan.kind, record.chosen, record.tries, plan, problem))


def read_fit(document: Document) -> FitRecord:
    """A record from its document.

    Raises:
        InputError: another schema, unknown fields, values out of range, or parts that do not belong together; names
            the field.
    """
    found = read(_FitDocument, FIT_SCHEMA, document)
    plan, problem = _part("plan", read_plan, found.plan), _part("problem", read_problem, found.problem)
    if found.kind != problem.kind or found.kind != plan.kind:
        raise InputError("kind", found.kind, f"is not that of its problem, {problem.kind}", "Restore the file.")
    expect_problem(plan.problem_sha256, problem.sha256)
    if found.chosen >= len(found.tries):
        remedy = f"Tries count from 0 to {len(found.tries) - 1}."
        raise InputError("chosen", found.chosen, "is none of the tries", remedy)
    return FitRecord(plan, problem, found.tries, found.chosen)


def load_fit(path: str | PathLike[str]) -> FitRecord:
    """The record that ``fitted.save(path)`` wrote.

    Raises:
        InputError: there is no such file, or it holds no record; names the field that is wrong.
    """
    return read_fit(load_document(Path(path)))


def _part(name: str, read_part: Any, document: Document) -> Any:
    try:
        return read_part(document)
    except InputError as error:
        raise InputError(f"{name}.{error.field}", error.value, error.problem, error.remedy) from None
