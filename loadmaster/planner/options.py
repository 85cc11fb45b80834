"""Options that a caller may give to the planner, and the reports on its progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import UnionType
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.envelope import Plan
from loadmaster.models.kinds import all_kinds
from loadmaster.models.units import bytes_of, show_cost, show_share

# The names under which the limit of the problem's kind may be given; the second one by kinds whose limit it is.
LIMIT_NAMES = ("limit", "budget_bytes")
SHORTEST_S = 0.1
_WITH_PRICES = 3


@dataclass(frozen=True)
class PlanOptions:
    """Options of one planning run.

    Attributes:
        time_limit_s: wall seconds for the whole run; the best plan so far is returned at the limit.
        gap: stop when (objective - bound) / objective is proved at most this.
        seed: of every solve and heuristic.
        solver: ``auto``, ``highs``, ``cpsat`` or ``pulp:NAME``.
        method: ``auto``, or one baseline, formulation or strategy of the problem's kind by name.
        budget_bytes: the limit, for kinds whose limit is a budget in bytes; overrides the problem's own. Bytes, a size
            (``"6GiB"``), or a share of what the kind calls the whole (``"50%"``: of the peak with memory to spare).
        memory_limit_bytes: address-space cap of each solver process: bytes, or a size.
        limit: as ``budget_bytes``, for any kind that has a limit: in its unit or as a share.
        prices: plan it with a little more of each resource, too, one at a time, where its kind can (``training``); what
            that gives is in ``plan.prices``. All of them together take as long as the plan, and as long for bounds.
    """

    time_limit_s: float = 60.0
    gap: float = 0.01
    seed: int = 0
    solver: str = "auto"
    method: str = "auto"
    budget_bytes: int | str | None = None
    memory_limit_bytes: int | str | None = None
    limit: int | str | None = None
    prices: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            _of_its_type(option.name, getattr(self, option.name))
        # A share waits for the problem that it is of, and a limit of any kind for its unit.
        for name in ("budget_bytes", "memory_limit_bytes"):
            if isinstance(value := getattr(self, name), str) and not (name in LIMIT_NAMES and "%" in value):
                object.__setattr__(self, name, bytes_of(value, f"options.{name}"))
        # 60 and 60.0 seconds are one request, with one cache key.
        object.__setattr__(self, "time_limit_s", float(self.time_limit_s))
        object.__setattr__(self, "gap", float(self.gap))
        _between("options.time_limit_s", self.time_limit_s, SHORTEST_S, 7 * 86_400.0, "seconds")
        _between("options.gap", self.gap, 0.0, 1.0, "a fraction, 0.01 is one percent")
        _between("options.seed", self.seed, 0, 2**31 - 1, "a whole number")
        if self.method != "auto":
            _expect_method(self.method)
        if self.solver not in ("auto", "highs", "cpsat") and not self.solver.startswith("pulp:"):
            raise InputError(
                "options.solver",
                self.solver,
                "is no solver",
                "Use auto, highs, cpsat or pulp:NAME, e.g. pulp:PULP_CBC_CMD.",
            )
        for name in LIMIT_NAMES:
            if isinstance(value := getattr(self, name), int):
                _between(f"options.{name}", value, 0, 1 << 60, "a whole number")
        if isinstance(self.memory_limit_bytes, int):
            _between("options.memory_limit_bytes", self.memory_limit_bytes, 1 << 28, 1 << 60, "bytes")

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PlanOptions:
        """Options from the ``options`` object of a request. Raises InputError for an unknown option, or a value of the
        wrong type or out of range."""
        known = {f.name for f in fields(cls)}
        for name, value in document.items():
            if name not in known:
                raise InputError(f"options.{name}", value, "is no option", f"Options are {', '.join(sorted(known))}.")
        return cls(**document)

    @property
    def wall_s(self) -> float:
        """Wall seconds for all that is asked for."""
        return self.time_limit_s * (_WITH_PRICES if self.prices else 1)

    @property
    def given_limit(self) -> int | str | None:
        """Limit that was given, by either name."""
        return self.budget_bytes if self.limit is None else self.limit

    @property
    def solver_memory_bytes(self) -> int | None:
        """Value of ``memory_limit_bytes`` as a number of bytes or None."""
        assert not isinstance(self.memory_limit_bytes, str), "sizes are read when options are made"
        return self.memory_limit_bytes

    def with_limit(self, value: int, name: str = "limit") -> PlanOptions:
        """Return the same options under another limit, given by one name alone."""
        return replace(
            self, limit=value if name == "limit" else None, budget_bytes=value if name == "budget_bytes" else None
        )

    def to_document(self) -> dict[str, Any]:
        """Return the options as JSON, without those not given."""
        return {k: v for k, v in asdict(self).items() if v is not None and v is not False}


def _expect_method(name: str) -> None:
    """Refuse a name that is not a method of any kind; whether it is one of the problem's kind is checked later."""
    methods = dict.fromkeys(method for kind in all_kinds().values() for method in kind.methods)
    if name not in methods:
        raise InputError("options.method", name, "is no method", f"Use one of {', '.join(methods)}.")


def _of_its_type(name: str, value: object) -> None:
    if name == "prices":
        if not isinstance(value, bool):
            raise InputError(f"options.{name}", value, "is neither true nor false", "Give true or false.")
        return
    if name in (*LIMIT_NAMES, "memory_limit_bytes") and value is None:
        return
    text, fraction = name in ("solver", "method"), name in ("time_limit_s", "gap")
    size = name in (*LIMIT_NAMES, "memory_limit_bytes")
    wanted: type | UnionType = str if text else int | float if fraction else int | str if size else int
    if isinstance(value, bool) or not isinstance(value, wanted):
        kind = "text" if text else "a number" if fraction else "a whole number"
        kind += ' or a size such as "6GiB"' if size else ""
        raise InputError(f"options.{name}", value, f"is not {kind}", f"Give {kind}.")


def _shown(end: float) -> str:
    """Format the end of a range, whole numbers in full, since a user has to give one."""
    return str(end) if isinstance(end, int) else f"{end:g}"


def _between(field: str, value: float, low: float, high: float, meaning: str) -> None:
    if not low <= value <= high:
        raise InputError(field, value, f"is outside {_shown(low)}..{_shown(high)}", f"Give {meaning} in that range.")


@dataclass(frozen=True)
class PlanProgress:
    """Report from a planning run on its progress.

    Attributes:
        objective, bound: the best so far, None before the first. The objective may be that of a solve under way, which
            has not made a plan yet.
        plan: makes the best plan in hand: checked, with the bound and the gap of that moment; None before the first. It
            is the same function until a better plan is in hand. Building and checking take the search's own time: from
            a tenth of a millisecond to half a second (a collective of 65,000 messages). So call it seldom, in the
            thread that plans.
    """

    seconds: float
    phase: str
    message: str
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None
    plan: Callable[[], Plan] | None = field(default=None, repr=False, compare=False)

    def figures(self) -> dict[str, Any]:
        """Fields of the report except the plan, as JSON has them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "plan"}

    def line(self, unit: str) -> str:
        """Format the state of the search in one line."""
        parts = [f"{self.seconds:6.1f} s", self.phase]
        if self.objective is not None:
            parts.append(f"plan {show_cost(self.objective, unit)}")
        if self.bound is not None:
            parts.append(f"bound {show_cost(self.bound, unit)}")
        if self.gap is not None:
            parts.append(f"gap {show_share(self.gap)}")
        if self.message:
            parts.append(self.message)
        return "  ".join(parts)
