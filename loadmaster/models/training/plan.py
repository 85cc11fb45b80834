"""The ``training`` plan: a point for every layer, and for every group of parameters where its bytes are stored, when
they move, and where its update runs.

Moves are tied to phases, not to the clock. ``at`` phase p means: once phase p-1, with the device updates after it, has
ended. Phases of the next step count on from P, the number of phases of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.models.envelope import Plan, Price, Total
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
    "host_bytes": Index,
    "disk_bytes": Index,
    "host_updates_us": _Us,
}

Weights = Literal["device", "copy", "streamed"]
State = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class Stay:
    """A stay of bytes on the device while phases ``load_at`` .. ``gone_at`` - 1 run, at most P. Their load is queued at
    ``load_at``; at ``gone_at`` (possibly in the next step) their memory is free."""

    load_at: Index
    gone_at: Index


@dataclass(frozen=True)
class GroupPlan:
    """Places and moves of one group.

    Attributes:
        weights: ``device``: the master weights stay on the device. ``copy``: they are on the host, and the copy that
            layers read stays on the device. ``streamed``: on the host, and the copy comes for ``stays`` alone.
        state: where the optimizer's state is stored between updates. ``disk``: in files, from which it is read into a
            buffer of host memory before an update on the host, and written back after it.
        update: where the update runs. An update on the host needs weights there, and state there or in files.
        update_after: phase after which an update on the device runs; None for the others.
        stays: of a streamed copy on the device.
        update_stay: of what an update on the device needs from the host (state, master weights, a streamed copy).
        gradient_gone_at: phase at which the memory of a gradient that is sent to the host is free.
        copy_load_at: phase at which the copy of weights that the host updates is loaded in its place.
    """

    leave_out_defaults: ClassVar = True

    weights: Weights = "device"
    state: State = "device"
    update: Literal["device", "host", "none"] = "device"
    update_after: Index | None = None
    stays: tuple[Stay, ...] = ()
    update_stay: Stay | None = None
    gradient_gone_at: Index | None = None
    copy_load_at: Index | None = None


@dataclass(frozen=True)
class Schedule:
    """All decisions: the number of the point of each layer, the plan of each group, and the number of buffers of host
    memory, as large as the largest state in files, that such states take turns in."""

    leave_out_defaults: ClassVar = True

    points: tuple[Index, ...]
    groups: tuple[GroupPlan, ...]
    disk_buffers: Index = 0


@dataclass(frozen=True)
class TrainingInfeasibility:
    """The reason why no plan exists: ``where`` there is too little room; no plan takes less than
    ``minimum_budget_bytes``."""

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingPlan(Plan):
    """A checked answer to a training problem, of a step that repeats. ``plain_us`` is the step with everything on the
    device and kept; the schedule is None if infeasible. ``prices``: what a little more of each resource would give,
    where that was asked for."""

    budget_bytes: Size
    plain_us: Total
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    schedule: Schedule | None = None
    infeasibility: TrainingInfeasibility | None = None
    prices: tuple[Price, ...] | None = None

    kind: Literal["training"] = "training"
