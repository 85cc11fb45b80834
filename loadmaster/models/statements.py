"""Statements of a plan, compared with what follows from its problem and its decisions.

Every field of a plan document is one of three things: a decision, which the kind's checker replays; a consequence of
the decisions, which is recomputed and compared; or a statement that nobody can recompute (the time of the search),
which is taken on trust, and reported so. A kind declares its decisions and what it takes on trust
(:class:`Statements`). All other fields are compared, also those that somebody adds later: one that nothing recomputes
is refused. A bound is recomputed where the kind knows an equally good one without a search. Elsewhere it is taken on
trust, as far as nothing contradicts it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any

from loadmaster.models.envelope import STOPPED_BY, Plan
from loadmaster.solvers.solution import relative_gap

# Tolerances: sums in another order agree to so many digits of themselves, and of the objective that they are parts of;
# ratios of sums to so much.
CLOSE = 1e-9
_OF_OBJECTIVE = 1e-13
_OF_ONE = 1e-14
# Solvers prove their bounds to so many digits.
_BOUND_DIGITS = 1e-6

_LONGEST_SHOWN = 200

# Statements of every plan: its search, its name, and its bound, unless that is recomputed.
TRUSTED = frozenset(
    {
        "name",
        "bound",
        "method",
        "stopped_by",
        *(f"seconds.{what}" for what in ("build", "solve", "check")),
        *(f"solver.{what}" for what in ("name", "version", "cpu_seconds", "solves", "nodes")),
        "options",
        "captured_with",
    }
)


class Share(float):
    """Recomputed ratio of differences that may cancel: its own digits say little where it is about 0."""


@dataclass(frozen=True)
class Recomputed:
    """Consequences of a problem and a plan's decisions.

    Attributes:
        fields: of the plan document, typed or as mappings; missing ones cannot be recomputed.
        least: lower bound of all plans' objective; None: the kind knows none without a search.
        wrong: contradictions of another kind, in words.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    least: float | None = None
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statements:
    """Roles of the fields of a kind's plans. Paths are written ``algorithms[].sends``; one stands for all below it.

    Attributes:
        decisions: fields that the checker replays. The kind's limit is one of them.
        trusted: fields taken on trust where they are not recomputed, in addition to :data:`TRUSTED`.
        recompute: (problem, plan, verdict of the replay, None for an infeasible plan) -> what follows, without the
            fields that every plan has.
    """

    decisions: frozenset[str]
    trusted: frozenset[str] = frozenset()
    recompute: Callable[[Any, Any, Any], Recomputed] = lambda problem, plan, verdict: Recomputed()


@dataclass(frozen=True)
class Held:
    """Result of comparing a plan's statements: each false one, with what is right; paths of those taken on trust; and
    ``least`` as in :class:`Recomputed`."""

    wrong: tuple[str, ...]
    trusted: tuple[str, ...]
    least: float | None


def unexplained(fields: Mapping[str, Any]) -> Recomputed:
    """Refuse an infeasible plan that does not say why."""
    return Recomputed(fields, wrong=("infeasibility: the plan says nothing of why there is none",))


def recomputed(of: Statements, limit: str | None, problem: Any, plan: Plan, verdict: Any) -> Recomputed:
    """Recompute all that follows from a plan's decisions, with the fields that every plan has. ``limit`` is the field
    of the limit that the kind's plans are made under; the verdict is None for an infeasible plan."""
    own = of.recompute(problem, plan, verdict)
    found: dict[str, Any] = {"kind": problem.kind, "problem_sha256": problem.sha256, "unit": problem.unit}
    if verdict is None:
        decisions = [f for f in fields(plan) if f.name in of.decisions - {limit}]
        found |= {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in decisions}
        found |= {"status": "infeasible", "objective": None, "bound": None, "gap": None, "check": {}}
        found["stopped_by"] = "proof"
    else:
        gap = relative_gap(verdict.objective, plan.bound)
        found |= {"status": status(plan, gap), "objective": verdict.objective, "check": verdict.summary()}
        found |= {"gap": None if gap is None else Share(gap), "infeasibility": None}
    return replace(own, fields={**found, **own.fields})


def status(plan: Plan, gap: float | None) -> str:
    """Status of a feasible plan: ``optimal`` where its gap is within the gap asked for, else ``feasible``."""
    asked = plan.options.get("gap", 0.0)
    if gap is None or not isinstance(asked, int | float):
        return "feasible"
    if asked < gap <= asked + CLOSE and plan.status != "infeasible":
        return plan.status  # on the edge, where rounding decides
    return "optimal" if gap <= asked else "feasible"


def compared(of: Statements, limit: str | None, problem: Any, plan: Plan, verdict: Any) -> Held:
    """Compare all that a plan states. Arguments as for :func:`recomputed`."""
    known = recomputed(of, limit, problem, plan, verdict)
    decisions = {limit} if verdict is None else of.decisions | {limit}
    objective = 0.0 if verdict is None else abs(verdict.objective)
    comparison = _Comparison(decisions, TRUSTED | of.trusted, _OF_OBJECTIVE * objective)
    comparison.walk("", plan, known.fields)
    wrong, trusted = comparison.wrong, comparison.trusted
    if plan.stopped_by not in STOPPED_BY:
        wrong.append(f"stopped_by: the plan says {_shown(plan.stopped_by)}, which is none of {', '.join(STOPPED_BY)}")
    if plan.bound is not None and verdict is not None:
        wrong = [*_contradictions(plan.bound, verdict.objective), *wrong]
        if known.least is not None and "bound" in trusted and plan.bound <= known.least * (1 + CLOSE):
            trusted.remove("bound")
    return Held((*wrong, *known.wrong), tuple(trusted), known.least)


def _contradictions(bound: float, objective: float) -> list[str]:
    """List the faults of a bound that nobody recomputes: not finite, negative, or above the plan's objective."""
    if not math.isfinite(bound) or bound < 0:
        return [f"bound: the plan says {bound}, which is no bound of an objective"]
    if bound > objective * (1 + _BOUND_DIGITS):
        return [f"bound: the plan says {bound}, above its own objective of {objective}"]
    return []


class _Absent:
    """Placeholder for a field that is not recomputed."""


class _Comparison:
    def __init__(self, decisions: Collection[str | None], may_be_trusted: Collection[str], tolerance: float) -> None:
        self.decisions, self.may_be_trusted, self.tolerance = decisions, may_be_trusted, tolerance
        self.wrong: list[str] = []
        self.trusted: list[str] = []

    def walk(self, path: str, stated: Any, known: Any) -> None:
        """Compare what is stated under a path. A mapping may state less than is known."""
        pattern = re.sub(r"\[\d+\]", "[]", path)
        if pattern in self.decisions or (known is _Absent and stated is None):
            return
        if known is _Absent and pattern in self.may_be_trusted:
            self.trusted.append(path)
            return
        if isinstance(stated, tuple) and stated == known:
            return
        parts, known_parts = _parts(stated), {} if known is _Absent else _parts(known)
        if parts is None or known_parts is None:
            self._leaf(path, stated, known)
        elif known is not _Absent and isinstance(stated, list | tuple) and len(parts) != len(known_parts):
            self.wrong.append(f"{path}: the plan says {len(parts)} entries, recomputed {len(known_parts)}")
        else:
            for name, part in parts.items():
                self.walk(f"{path}{name}" if path else name.lstrip("."), part, known_parts.get(name, _Absent))

    def _leaf(self, path: str, stated: Any, known: Any) -> None:
        if known is _Absent:
            self.wrong.append(f"{path}: the plan says {_shown(stated)}, and nothing tells whether that is true")
        elif not self._agree(stated, known):
            self.wrong.append(f"{path}: the plan says {_shown(stated)}, recomputed {_shown(known)}")

    def _agree(self, stated: Any, known: Any) -> bool:
        numbers = [type(one) in (int, float, Share) for one in (stated, known)]
        if not all(numbers):
            return type(stated) is type(known) and bool(stated == known)
        if isinstance(stated, int) and isinstance(known, int):
            return stated == known
        return math.isclose(
            stated, known, rel_tol=CLOSE, abs_tol=_OF_ONE if isinstance(known, Share) else self.tolerance
        )


def _parts(value: Any) -> dict[str, Any] | None:
    """Parts of a value, by their additions to its path; None for a leaf."""
    if is_dataclass(value):
        return {f".{f.name}": getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {f".{name}": part for name, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{n}]": part for n, part in enumerate(value)}
    return None


def _shown(value: Any) -> str:
    text = repr(float(value) if isinstance(value, Share) else value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
