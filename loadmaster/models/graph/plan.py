"""Plans of the kind ``graph``: an order of the program, its schedule, expected costs of kernels, and hot rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from loadmaster.models.envelope import Plan
from loadmaster.models.fields import Bounds, Entries, Index, Size
from loadmaster.models.graph.program import Program
from loadmaster.models.graph.schedule import Schedule

_Us = Annotated[float, Bounds(ge=0, le=1e18)]
_Bytes = Annotated[float, Bounds(ge=0, le=1e24)]
CHECKED: Mapping[str, Any] = {
    "ok": bool,
    "peak_bytes": Index,
    "peak_at": str,
    "kernels_us": _Us,
    "gather_us": _Us,
    "dram_bytes": _Bytes,
    "flops": _Bytes,
}


@dataclass(frozen=True)
class KernelCost:
    """Expected cost of one kernel; its stored bytes are part of the DRAM bytes."""

    time_us: _Us
    dram_bytes: _Bytes
    stored_bytes: Size
    flops: _Bytes


@dataclass(frozen=True)
class GraphInfeasibility:
    """Reason why no plan exists: the smallest takes ``minimum_budget_bytes``, most of it ``largest``, at ``where``."""

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str
    largest: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class GraphPlan(Plan):
    """Plan of a graph problem, as checked by :func:`loadmaster.models.graph.checker.check`.

    Attributes:
        choices: of the order: the form taken for each value that can be made in several ways.
        program, schedule: of a step in that order; None when infeasible.
        hot_rows: number of feature rows, by rank of access, that are kept on the GPU.
    """

    budget_bytes: Size
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    choices: Mapping[str, str] = field(default_factory=dict)
    program: Program | None = None
    schedule: Schedule | None = None
    kernels: tuple[KernelCost, ...] = ()
    hot_rows: Size = 0
    infeasibility: GraphInfeasibility | None = None

    kind: Literal["graph"] = "graph"
