"""Fields that plans of every kind have: problem, status, objective and bound, seconds, and the checker's verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from loadmaster.models.fields import READING, Bounds, Entries, Json, MayBeMissing, Name, Seconds, Sha256, Status
from loadmaster.models.shown import ShownPlan

# Above a year in microseconds for each of a hundred million operators: a mistake in units.
_LARGEST = 1e21

# Reasons for which a search ends; see :class:`Plan`.
STOPPED_BY = ("gap", "time", "cancel", "crash", "proof", "method", "nothing")

Total = Annotated[float, Bounds(ge=0, le=_LARGEST)]


@dataclass(frozen=True)
class Price:
    """Worth of a little more of a resource, in the unit of the plan.

    Attributes:
        more: of what, in words.
        bound_falls: by how much the proved bound is lower with it; None where it was not proved in time.
        plan_gains: by how much the best plan that was found with it is better.
    """

    more: Name
    bound_falls: Annotated[Total | None, MayBeMissing()]
    plan_gains: Total


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(ShownPlan):
    """Plan of a problem of any kind, as checked.

    Attributes:
        status: optimal (within the asked gap), feasible (stopped by a limit) or infeasible.
        objective, bound, gap: of the quantity that the kind minimizes, in ``unit``; the bound is proved.
        method: the strategy whose plan this is.
        stopped_by: gap, time, cancel, crash (of a solver), proof, or method: it has tried all that it has to try.
            ``nothing``: the search goes on, and this is its best plan so far.
        seconds: wall seconds of ``build``, ``solve``, ``check``.
        solver: name, version, cpu_seconds, nodes.
        check: the checker's verdict, in short.
        captured_with: versions that the problem was captured with, by package; None where it was not captured.
    """

    name: str
    problem_sha256: Sha256
    status: Status
    objective: Total | None = None
    bound: Annotated[float, Bounds(ge=-_LARGEST, le=_LARGEST)] | None = None
    gap: float | None = None
    unit: str
    method: str
    stopped_by: str
    seconds: Mapping[str, Seconds]
    solver: Mapping[str, Json]
    check: Annotated[Mapping[str, Any], Entries({"ok": bool})]
    options: Mapping[str, Json] = field(default_factory=dict)
    captured_with: Mapping[str, str] | None = None

    kind: str

    __pydantic_config__: ClassVar = READING

    @property
    def standing(self) -> str:
        """Status in words, for a person."""
        return self.status
