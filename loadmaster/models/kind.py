"""Registration of a kind of problem: all that the other floors need to know of it (see :mod:`loadmaster.models.kinds`).

Functions and modules are named, ``"module:name"`` or ``"module"``, and imported when they are first needed: listing the
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
    """Interface of the typed problems of all kinds, which are frozen dataclasses."""

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str | None: ...

    @property
    def unit(self) -> str:
        """Unit of the objectives of plans."""

    @property
    def sha256(self) -> str:
        """Identity of the problem: neither the names nor the limit enter it."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Counts of what the problem consists of, for a person who waits for its plan."""


class Verdict(Protocol):
    """Verdict of every kind's checker: whether the plan holds, why not, and the objective of its own replay."""

    @property
    def ok(self) -> bool: ...

    @property
    def violations(self) -> tuple[str, ...]: ...

    @property
    def objective(self) -> float: ...

    def summary(self) -> dict[str, object]: ...


class Documents(Protocol):
    """Reader and writer of one kind's documents: the interface of its module of documents."""

    def read_problem(self, document: Document) -> Any: ...

    def write_problem(self, problem: Any) -> dict[str, Any]: ...

    def read_plan(self, document: Document) -> Any: ...

    def write_plan(self, plan: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Limit:
    """Limit that plans of a kind are made under, such as a budget: more of it never makes the best plan worse.

    Attributes:
        name, plural: ``budget`` makes the flag ``--budget``, ``budgets`` the flag ``--budgets``.
        field: of problem documents (may be absent) and plan documents (never is): ``budget_bytes``.
        unit: ``bytes`` or ``messages``.
        whole: (problem) -> the limit that is 100 %; more is of no use.
        whole_words: the same in words: ``the peak with memory to spare``.
        points: (problem, count) -> ascending limits of a frontier where none are given.
        with_bound: (plan, bound, problem) -> the plan with another proved bound, for kinds in which more than gap and
            status follows from the bound.
        extras: (problem, plans) -> additions of the kind to the page of a frontier
            (:class:`loadmaster.api.report.extras.Extras`).
        restrictions: (problem) -> by name, the same problem with fewer choices, whose plans are plans of the whole one
            too: frontiers can be compared with theirs.
        prices: (problem, plan, options, *, others, on_progress, cancelled) -> what a little more of each resource would
            give (:class:`loadmaster.models.envelope.Price`); ``others`` are plans under other limits. Its plans have
            the field ``prices``.
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
    prices: str | None = None

    @property
    def flag(self) -> str:
        """Flag of the limit on the command line."""
        return f"--{self.name}"

    @property
    def values(self) -> str:
        """Forms in which a limit is written, in words."""
        values = "5GiB, 800MB, bytes" if self.unit == "bytes" else f"a number of {self.unit}"
        return f"{values}, or 50% of {self.whole_words}"

    @property
    def help(self) -> str:
        """Forms in which a limit is written, for argparse, where a percent sign has to be doubled."""
        return self.values.replace("%", "%%")

    def stated(self, problem: Problem) -> int | None:
        """Return the limit that a problem states, if it states one."""
        found: int | None = getattr(problem, self.field)
        return found

    def of_plan(self, plan: Plan) -> int:
        """Return the limit that a plan was made under."""
        found: int = getattr(plan, self.field)
        return found

    def set(self, what: T, value: int) -> T:
        """Return the same problem or plan under another limit."""
        return replace(what, **{self.field: value})  # type: ignore[type-var]

    def value(self, given: int | str, problem: Problem, field: str) -> int:
        """Read a limit, a number of its unit or text that people write: ``6GiB``, ``3``, or ``50%`` of the whole.
        Raises InputError, naming ``field``, if it is not a limit."""
        written = self.read(given, field)
        return int(written * resolve(self.whole)(problem)) if isinstance(written, float) else written

    def read(self, given: int | str, field: str) -> int | float:
        """Read a limit without a problem, in its unit, or a share as a fraction; raise InputError as :meth:`value`."""
        if not isinstance(given, str):
            if isinstance(given, bool) or not isinstance(given, int):
                raise InputError(field, given, f"is no whole number of {self.unit}", f"Give {self.values}.")
            least = 1 if self.unit == "bytes" else 0  # nothing runs in no memory; no messages can be asked for
            if given < least:
                raise InputError(field, given, f"is less than {least}", f"Give {self.values}.")
            return given
        if "%" in given:
            return parse_share(given, field, self.whole_words)
        return parse_bytes(given, field) if self.unit == "bytes" else parse_count(given, field, self.unit)

    def default_points(self, problem: Problem, count: int) -> Sequence[int]:
        """Choose ``count`` limits that make a frontier."""
        found: Sequence[int] = resolve(self.points)(problem, count)
        return found


@dataclass(frozen=True)
class Number:
    """Parameter of an export, from 1 to the most that can be of use, given as ``--name N`` or ``?name=N``."""

    name: str
    default: int
    help: str
    most: int

    def checked(self, given: int | None, field: str) -> int:
        """Return the number given, or the default; raise InputError, naming ``field``, for one that is out of range."""
        if given is None:
            return self.default
        if given < 1:
            raise InputError(field, given, "is less than 1", "Give a whole number of at least 1.")
        if given > self.most:
            raise InputError(field, given, f"is more than {self.most}", f"Give a whole number from 1 to {self.most}.")
        return given


@dataclass(frozen=True)
class Export:
    """Export of feasible plans as a file, by ``show --name`` and ``/v1/plans/{id}/export/{name}``.

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
    """Kind of problem, as it is registered.

    Attributes marked with a floor are references to names in the kind's room on that floor.

    Attributes:
        documents: models: the module that reads and writes documents (see :class:`Documents`).
        validate: models: refuses (InputError) a typed problem that means nothing; what is read has passed it.
        check: models: (problem, plan) -> :class:`Verdict`, blind to how the plan was found.
        plan: planner: (problem, options, *, on_progress, cancelled) -> checked plan.
        methods: values of ``options.method``, ``auto`` first.
        limit: that its plans are made under, if there is one.
        statements: models: the roles of its plans' fields (:class:`loadmaster.models.statements.Statements`); None:
            all fields of its plans beyond those that every plan has are left to ``check``.
        views: api: the module that shows plans in words (see :class:`loadmaster.api.report.views.Views`).
        exports: files that plans can be written as.
        simulate: api: (problem, policies, limit, plan or None) -> :class:`loadmaster.api.report.views.Simulated`:
            results of policies without a plan; given only where there is a limit.
        policies: that ``simulate`` may be asked for; ``plan`` among them follows a plan.
        measurement: models: (document, plan) -> the measurement of a run of the plan; views of the kind hold it as
            ``measured``.
        summary: models, or planner where it takes a solve: (problem) -> :class:`loadmaster.models.summary.Summary`:
            what the kind says of a problem in addition to its sizes and its limit.
        new: api: the module that builds problems for ``new`` (see :class:`loadmaster.api.cli.build.New`).
        capture: executor: the command behind ``capture``: (arguments without the kind's name) -> exit status.
        captured_by_default: whether ``capture`` makes this kind where none is named.
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
        """Import the kind's module of documents."""
        found: Documents = resolve(self.documents)
        return found
