"""What the house needs to know of a kind of problem: the form of one registration (see :mod:`loadmaster.models.kinds`).

Functions and modules are named, ``"module:name"`` or ``"module"``, and imported when they are first needed: to list the
kinds, their flags and their methods loads none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from loadmaster.errors import InputError
from loadmaster.models.documents import Document
from loadmaster.models.envelope import Plan
from loadmaster.models.references import resolve as resolve
from loadmaster.models.units import parse_bytes, parse_count, parse_share

T = TypeVar("T")


class Problem(Protocol):
    """What the typed problems of all kinds have: frozen dataclasses."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str | None: ...

    @property
    def unit(self) -> str:
        """Of objectives."""

    @property
    def sha256(self) -> str:
        """Identity: neither the names nor the limit enter it."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How large it is, by what it consists of, for a person who waits for its plan."""


class Verdict(Protocol):
    """What every kind's checker says: whether the plan holds, why not, and the objective of its own replay."""

    @property
    def ok(self) -> bool: ...

    @property
    def violations(self) -> tuple[str, ...]: ...

    @property
    def objective(self) -> float: ...

    def summary(self) -> dict[str, object]: ...


class Documents(Protocol):
    """How documents of one kind are read and written: what its module of documents offers."""

    def read_problem(self, document: Document) -> Any: ...

    def write_problem(self, problem: Any) -> dict[str, Any]: ...

    def read_plan(self, document: Document) -> Any: ...

    def write_plan(self, plan: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Limit:
    """What plans of a kind are made under: more of it never makes the best plan worse.

    Attributes:
        name, plural: what it is called: ``budget`` makes the flag ``--budget``, ``budgets`` the flag ``--budgets``.
        field: of problem documents (may be absent) and plan documents (never is): ``budget_bytes``.
        unit: ``bytes`` or ``messages``.
        whole: (problem) -> what 100 % of it is; more is of no use.
        whole_words: the same in words: ``the peak with memory to spare``.
        points: (problem, count) -> ascending limits of a frontier where none are given.
        with_bound: (plan, bound, problem) -> the plan with another proved bound, where more than its gap and status
            follow from that.
        extras: (problem, plans) -> what the kind adds to the page of a frontier
            (:class:`loadmaster.api.report.extras.Extras`).
        restrictions: (problem) -> by name, the same problem with fewer choices, whose plans are plans of the whole one
            too: what frontiers can be held against.
    """

    name: str
    plural: str
    field: str
    unit: str
    whole: str
    whole_words: str
    points: str
    with_bound: str | None = None
    extras: str | None = None
    restrictions: str | None = None

    @property
    def flag(self) -> str:
        """On the command line."""
        return f"--{self.name}"

    @property
    def values(self) -> str:
        """How a limit is written."""
        values = "5GiB, 800MB, bytes" if self.unit == "bytes" else f"a number of {self.unit}"
        return f"{values}, or 50% of {self.whole_words}"

    @property
    def help(self) -> str:
        """The same for argparse, where a percent sign stands for something."""
        return self.values.replace("%", "%%")

    def stated(self, problem: Problem) -> int | None:
        """The limit that a problem brings."""
        found: int | None = getattr(problem, self.field)
        return found

    def of_plan(self, plan: Plan) -> int:
        """The limit that a plan was made under."""
        found: int = getattr(plan, self.field)
        return found

    def set(self, what: T, value: int) -> T:
        """The same problem or plan under another limit."""
        return replace(what, **{self.field: value})  # type: ignore[type-var]

    def value(self, given: int | str, problem: Problem, field: str) -> int:
        """A limit in its unit, from a number of it or from what people write: ``6GiB``, ``3``, or ``50%`` of the whole.

        Raises:
            InputError: naming ``field``: it is none of these, or not above 0.
        """
        written = self.read(given, field)
        return int(written * resolve(self.whole)(problem)) if isinstance(written, float) else written

    def read(self, given: int | str, field: str) -> int | float:
        """What was given, before there is a problem: a number of the unit, or a share as a fraction.

        Raises:
            InputError: as :meth:`value`.
        """
        if not isinstance(given, str):
            if isinstance(given, bool) or not isinstance(given, int):
                raise InputError(field, given, f"is no whole number of {self.unit}", f"Give {self.values}.")
            return given
        if "%" in given:
            return parse_share(given, field, self.whole_words)
        return parse_bytes(given, field) if self.unit == "bytes" else parse_count(given, field, self.unit)

    def default_points(self, problem: Problem, count: int) -> Sequence[int]:
        """``count`` limits that make a frontier."""
        found: Sequence[int] = resolve(self.points)(problem, count)
        return found


@dataclass(frozen=True)
class Number:
    """A whole number of at least 1 that an export takes, as ``--name N`` or ``?name=N``.

    Attributes:
        most: the largest that can be of use: a larger one is refused before anything is written.
    """

    name: str
    default: int
    help: str
    most: int

    def checked(self, given: int | None, field: str) -> int:
        """The number given, or the default.

        Raises:
            InputError: naming ``field``, when it is less than 1 or more than the most.
        """
        if given is None:
            return self.default
        if given < 1:
            raise InputError(field, given, "is less than 1", "Give a whole number of at least 1.")
        if given > self.most:
            raise InputError(field, given, f"is more than {self.most}", f"Give a whole number from 1 to {self.most}.")
        return given


@dataclass(frozen=True)
class Export:
    """One thing that a feasible plan can be written as, by ``show --name`` and ``/v1/plans/{id}/export/{name}``.

    Attributes:
        media_type: of the file; of each file where there are several (HTTP then sends a ZIP archive of them).
        write: (view, **numbers) -> bytes, or file name -> bytes where it is several files.
        suffix: of the file's name; empty where it is several files, which go to a folder.
        hint: what to do with it, for a message.
    """

    name: str
    help: str
    media_type: str
    write: str
    suffix: str = ""
    hint: str = ""
    numbers: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Kind:
    """One kind of problem. Those marked with a floor are references to what lies in the kind's room on that floor.

    Attributes:
        documents: models: the module that reads and writes documents (see :class:`Documents`).
        validate: models: refuses (InputError) a typed problem that means nothing; what is read has passed it.
        check: models: (problem, plan) -> :class:`Verdict`, blind to how the plan was found.
        plan: planner: (problem, options, *, on_progress, cancelled) -> checked plan.
        methods: what ``options.method`` may be, ``auto`` first.
        limit: what its plans are made under, if anything.
        statements: models: what the fields of its plans are (:class:`loadmaster.models.statements.Statements`); None:
            all that its plans have beside what every plan has is left to ``check``.
        views: api: the module that shows plans in words (see :class:`loadmaster.api.report.views.Views`).
        exports: what plans can be written as.
        simulate: api: (problem, policies, limit, plan or None) -> :class:`loadmaster.api.report.simulation.Simulated`:
            what policies without a plan come to; given only where there is a limit.
        policies: what it may be asked for; ``plan`` among them follows a plan.
        measurement: models: (document, plan) -> what the plan measured when it ran; views of the kind hold it as
            ``measured``.
        summary: models: (problem) -> :class:`loadmaster.models.summary.Summary`: what there is to say of a problem
            beside its sizes and its limit.
        new: api: the module that builds problems for ``new`` (see :class:`loadmaster.api.cli.build.New`).
        capture: executor: the command behind ``capture``: (arguments without the kind's name) -> exit status.
        captured_by_default: what ``capture`` makes where no kind is named.
    """

    name: str
    question: str
    documents: str
    validate: str
    check: str
    plan: str
    views: str
    new: str
    methods: tuple[str, ...] = ("auto",)
    limit: Limit | None = None
    exports: tuple[Export, ...] = ()
    capture: str | None = None
    captured_by_default: bool = False
    summary: str | None = None
    statements: str | None = None
    simulate: str | None = None
    policies: tuple[str, ...] = ()
    measurement: str | None = None

    def read(self) -> Documents:
        """The documents of the kind."""
        found: Documents = resolve(self.documents)
        return found
