"""The ``placement`` plan: when each block leaves the device, where its bytes are meanwhile, and when it comes back.

Moves are tied to operators, not to the clock, so that a plan holds on a device that is faster or slower than was
planned. ``at`` operator p means: once operator p-1 has ended. Positions of the next step count on from n, the number of
operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from loadmaster.models.envelope import Plan, Total
from loadmaster.models.fields import Bounds, Entries, Index, Size
from loadmaster.models.placement.problem import LARGEST_US

_Us = Annotated[float, Bounds(ge=0, le=1e6 * LARGEST_US)]
CHECKED: Mapping[str, Any] = {
    "ok": bool,
    "peak_bytes": Index,
    "peak_at": str,
    "step_us": _Us,
    "stall_us": _Us,
    "stored_bytes": Index,
    "loaded_bytes": Index,
}


@dataclass(frozen=True)
class Store:
    """The copy of a block to a tier, queued at operator ``at`` (0..n-1) behind earlier stores to the tier in the list.
    The block stays on the device until an absence says otherwise."""

    block: Index
    tier: Index
    at: Index


@dataclass(frozen=True)
class Absence:
    """The absence of a block from the device while operators ``gone_at`` .. ``load_at`` - 1 run.

    Its memory is free at operator ``gone_at`` (0..n-1), which waits for the copy. Its load is queued at ``load_at``,
    in the order of loads of its tier, and its next reader waits for it. ``load_at`` may be in the next step: n or more.
    """

    block: Index
    tier: Index
    gone_at: Index
    load_at: Index


@dataclass(frozen=True)
class Moves:
    """All moves of one step: stores in queue order, absences in the order of their loads."""

    stores: tuple[Store, ...] = ()
    absences: tuple[Absence, ...] = ()


@dataclass(frozen=True)
class PlacementInfeasibility:
    """The reason why no plan exists: ``where`` there is too little room; ``minimum_budget_bytes`` have a plan. Unless
    tiers are full, no less has one."""

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str


@dataclass(frozen=True, kw_only=True, repr=False)
class PlacementPlan(Plan):
    """A checked answer to a placement problem (see :func:`loadmaster.models.placement.checker.check`), of a step that
    repeats; its bound is the fluid relaxation's. ``compute_us`` is the step with memory to spare; moves are None if
    infeasible."""

    budget_bytes: Size
    compute_us: Total
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    moves: Moves | None = None
    infeasibility: PlacementInfeasibility | None = None

    kind: Literal["placement"] = "placement"
