"""Record of fitting a step to a limit by measurement: the plan, its corrected problem, and the measurements of tries.
Where torch.compile's own partition is faster there is no plan, but the value of its knob.

A record is a fitted step without the model: written where the step is fitted, read anywhere. The plan of a record is
applied as any plan is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from loadmaster.models.units import show_bytes, show_cost, show_mib

FIT_SCHEMA: Literal["loadmaster/fit/1"] = "loadmaster/fit/1"

_Delta = Annotated[int, Bounds(ge=-LARGEST_BYTES, le=LARGEST_BYTES)]
_Time = Annotated[float, Bounds(ge=0, le=1e18)]


@dataclass(frozen=True)
class TryRecord:
    """Record of one plan that was run.

    Attributes:
        planned_peak_bytes, planned_us: as the checker replays it.
        used_bytes: bytes that count against the budget, as measured.
        peak_bytes, step_us: measured.
        corrected_bytes: that the planned problem holds in addition to what was captured.
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

    @property
    def time_error(self) -> float:
        """Measured over planned step time, less one; 0 where no step was over."""
        return self.step_us / self.planned_us - 1.0 if self.planned_us and not self.ran_out else 0.0


@dataclass(frozen=True)
class KnobTryRecord:
    """Record of torch.compile's own partition under one value of its ``knob``,
    ``torch._functorch.config.activation_memory_budget``; the other fields are as of a plan that was run."""

    budget_bytes: Size
    knob: Annotated[float, Bounds(ge=0, le=1)]
    used_bytes: Size
    peak_bytes: Size
    step_us: _Time
    kept: bool
    ran_out: bool = False


@dataclass(frozen=True)
class PlainTryRecord:
    """Record of plain PyTorch's step, taken where compiled steps compute something else; fields are as of a plan."""

    budget_bytes: Size
    used_bytes: Size
    peak_bytes: Size
    step_us: _Time
    kept: bool


@dataclass(frozen=True)
class _FitDocument:
    kind: str
    tries: tuple[TryRecord, ...]
    chosen: Index | None = None
    plan: Mapping[str, Json] | None = None
    problem: Mapping[str, Json] | None = None
    knob_tries: tuple[KnobTryRecord, ...] = ()
    chosen_knob: Index | None = None
    plain: PlainTryRecord | None = None

    __pydantic_config__: ClassVar = READING


@dataclass(frozen=True, repr=False)
class FitRecord:
    """Fitted step without its model: one of a plan, torch.compile's own partition, and plain PyTorch's step.

    Attributes:
        plan, problem: the plan that the step runs, and the corrected problem that it is for; None where it runs none.
        tries: every plan that was run, in order; ``chosen``: which of them the step is, if it is one.
        knob_tries: every value of torch.compile's knob that was run, in order; ``chosen_knob`` as above.
        plain: plain PyTorch's step, if the step is that one.
    """

    plan: Plan | None
    problem: Problem | None
    tries: tuple[TryRecord, ...]
    chosen: int | None
    knob_tries: tuple[KnobTryRecord, ...] = ()
    chosen_knob: int | None = None
    kind: str = "memory"
    plain: PlainTryRecord | None = None

    @property
    def measured(self) -> TryRecord | KnobTryRecord | PlainTryRecord:
        """Record of the try that the step is."""
        if self.plain is not None:
            return self.plain
        if self.chosen_knob is not None:
            return self.knob_tries[self.chosen_knob]
        assert self.chosen is not None, "one of both"
        return self.tries[self.chosen]

    @property
    def knob(self) -> float | None:
        """Value of ``activation_memory_budget`` that the step is compiled under; None where it runs a plan."""
        return None if self.chosen_knob is None else self.knob_tries[self.chosen_knob].knob

    def save(self, path: str | PathLike[str]) -> None:
        """Write the record to a file, or raise InputError; ``loadmaster.load_fit(path)`` reads it back."""
        save_document(path, write_fit(self))

    def __repr__(self) -> str:
        name = ("torch.compile" if self.plain is None else "PyTorch") if self.plan is None else self.plan.name
        return one_line(self, name, fit_words(self.measured, len(self.tries) + len(self.knob_tries)))


def fit_words(chosen: TryRecord | KnobTryRecord | PlainTryRecord, tries: int) -> list[str]:
    """Describe a fitted step in a few words: the budget, and the measurements."""
    plain = ["plain PyTorch"] if isinstance(chosen, PlainTryRecord) else []
    knob = [f"activation_memory_budget {chosen.knob:.3g}"] if isinstance(chosen, KnobTryRecord) else []
    return [
        *plain,
        *knob,
        f"budget {show_bytes(chosen.budget_bytes)}",
        f"measured {show_bytes(chosen.peak_bytes)}",
        f"step {show_cost(chosen.step_us, 'us')}",
        "1 try" if tries == 1 else f"{tries} tries",
    ]


def describe(tried: TryRecord) -> str:
    """One line: budget, planned and measured peak, planned and measured time."""
    if tried.ran_out:
        planned = f"peak planned {show_mib(tried.planned_peak_bytes)}"
        return f"budget {show_mib(tried.budget_bytes)}: {planned}, and the device ran out of memory"
    peak = f"peak planned {show_mib(tried.planned_peak_bytes)}, measured {show_mib(tried.used_bytes)}"
    time = f"step planned {tried.planned_us / 1e3:.2f} ms, measured {tried.step_us / 1e3:.2f} ms"
    held = "kept" if tried.kept else f"exceeded by {show_mib(tried.used_bytes - tried.budget_bytes)}"
    return f"budget {show_mib(tried.budget_bytes)} {held}: {peak}; {time} ({tried.time_error:+.1%})"


def write_fit(record: FitRecord) -> dict[str, Any]:
    """Write the document of a fit record."""
    plan = None if record.plan is None else write_plan(record.plan)
    problem = None if record.problem is None else write_problem(record.problem)
    found = _FitDocument(
        kind=record.kind,
        tries=record.tries,
        chosen=record.chosen,
        plan=plan,
        problem=problem,
        knob_tries=record.knob_tries,
        chosen_knob=record.chosen_knob,
        plain=record.plain,
    )
    return write(FIT_SCHEMA, found)


def read_fit(document: Document) -> FitRecord:
    """Read a fit record from its document. Raises InputError, naming the field, for another schema, unknown fields,
    values out of range, or parts that do not belong together."""
    found = read(_FitDocument, FIT_SCHEMA, document)
    plan = None if found.plan is None else _part("plan", read_plan, found.plan)
    problem = None if found.problem is None else _part("problem", read_problem, found.problem)
    for name, part in (("plan", plan), ("problem", problem)):
        if (part is None) != (found.chosen is None):
            says = "is missing" if part is None else "is there, and none of the plans was chosen"
            raise InputError(name, None if part is None else part.name, says, "Restore the file.")
        if part is not None and part.kind != found.kind:
            raise InputError("kind", found.kind, f"is not that of its {name}, {part.kind}", "Restore the file.")
    if plan is not None and problem is not None:
        expect_problem(plan.problem_sha256, problem.sha256)
    if sum(one is not None for one in (found.chosen, found.chosen_knob, found.plain)) != 1:
        raise InputError("chosen", found.chosen, "must be one try", "Give one of chosen, chosen_knob and plain.")
    _expect_one_of("chosen", found.chosen, "tries", found.tries)
    _expect_one_of("chosen_knob", found.chosen_knob, "knob_tries", found.knob_tries)
    return FitRecord(
        plan, problem, found.tries, found.chosen, found.knob_tries, found.chosen_knob, found.kind, found.plain
    )


def _expect_one_of(field: str, chosen: int | None, among: str, tries: Sequence[object]) -> None:
    if chosen is None:
        return
    if not tries:
        raise InputError(among, tries, f"holds none, and {field} is one of them", "Restore the file.")
    if chosen >= len(tries):
        raise InputError(field, chosen, "is none of the tries", f"Tries count from 0 to {len(tries) - 1}.")


def load_fit(path: str | PathLike[str]) -> FitRecord:
    """Read the record that ``fitted.save(path)`` wrote.

    Raises:
        InputError: there is no such file, or it does not hold a record; names the field that is wrong.
    """
    return read_fit(load_document(Path(path)))


def _part(name: str, read_part: Any, document: Document) -> Any:
    try:
        return read_part(document)
    except InputError as error:
        raise InputError(f"{name}.{error.field}", error.value, error.problem, error.remedy) from None
