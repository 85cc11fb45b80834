"""What every plan has, whatever its kind: whose answer it is, how good, how long it took, what the checker says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from loadmaster.models.fields import READING, Bounds, Entries, Json, Seconds, Sha256, Status
from loadmaster.models.shown import ShownPlan

# Above a year in microseconds for each of a hundred million operators: a mistake in units.
_LARGEST = 1e21

# What ends a search; see :class:`Plan`.
STOPPED_BY = ("gap", "time", "cancel", "crash", "proof", "method", "nothing")

Total = Annotated[float, Bounds(ge=0, le=_LARGEST)]


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(ShownPlan):
    """A checked answer to a problem.

    Attributes:
        status: optimal (within the asked gap), feasible (stopped by a limit) or infeasible.
        objective, bound, gap: of what the kind minimizes, in ``unit``; the bound is proved.
        method: the strategy whose plan this is.
        stopped_by: gap, time, cancel, crash (of a solver), proof, or method: all that it has to try has been tried.
            ``nothing``: the search went on when this was its best plan.
        seconds: wall seconds of ``build``, ``solve``, ``check``.
        solver: name, version, cpu_seconds, nodes.
        check: the checker's verdict, in short.
        captured_with: what the problem was captured with, package by package; None where it was not captured.
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
        """The status, for a person."""
        return self.status
