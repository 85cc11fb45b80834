"""The ``memory`` plan: what each stage of the step computes, fetches and keeps, and the proof that goes with it.

Stage 0 is the forward pass. Stage k = 1..K recomputes some forward operators in ascending order, then runs backward
operator k. S[t] (the results on the device when stage t starts) is ``keep`` of stage t-1 plus the fetches that
arrive at stage t. What backward k reads, its stage keeps too, unless it computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.models.envelope import Plan, Total
from loadmaster.models.fields import Bounds, Entries, Index, MayBeMissing, Size
from loadmaster.models.memory.problem import LARGEST_COST
from loadmaster.models.units import show_share

# What :meth:`loadmaster.models.memory.verdict.MemoryCheck.summary` records.
_Us = Annotated[float, Bounds(ge=0, le=1e9 * LARGEST_COST)]
CHECKED: Mapping[str, Any] = {
    "ok": bool,
    "peak_bytes": Index,
    "peak_at": str,
    **dict.fromkeys(("time_us", "forward_us", "recompute_us", "backward_us", "stall_us", "cut_us"), _Us),
    "recomputed": Index,
    "offloaded_bytes": Index,
}


@dataclass(frozen=True)
class Compute:
    """Run forward operator ``forward`` with the ``implementation`` of that index. In stage 0 the index counts
    ``implementations``, later ``recompute_implementations``. For an encoded result ``in_place`` says that its parent
    runs in place."""

    leave_out_defaults: ClassVar = True

    forward: Index
    implementation: Index = 0
    in_place: bool = False


@dataclass(frozen=True)
class Fetch:
    """An offloaded result on its way back from the start of stage ``issued_at``; it is there when this stage starts.
    Its bytes count from ``issued_at`` on."""

    forward: Index
    issued_at: Index


@dataclass(frozen=True)
class Stage:
    """One stage. ``implementation`` is of the backward operator (None in stage 0); ``keep`` is ascending."""

    leave_out_defaults: ClassVar = True

    computes: tuple[Compute, ...]
    implementation: Annotated[Index | None, MayBeMissing()]
    keep: tuple[Index, ...]
    fetches: tuple[Fetch, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The whole step: stages 0..K, and the results sent to host memory in the forward pass.

    How results travel is stated in :mod:`loadmaster.models.memory.links`.

    Attributes:
        offload: the results sent, in sending order.
        gone_before: for each of them, the forward operator that starts when its bytes are gone (the number of forward
            operators: the backward pass waits for it). Empty: all are there until the backward pass starts.
    """

    stages: tuple[Stage, ...]
    offload: tuple[Index, ...] = ()
    gone_before: tuple[Index, ...] = ()

    def departures(self, forward_count: int) -> dict[int, int]:
        """Operator that starts when each result sent is gone, in sending order."""
        gone_before = self.gone_before or (forward_count,) * len(self.offload)
        return dict(zip(self.offload, gone_before, strict=False))


@dataclass(frozen=True)
class Blocker:
    """One tensor that sets the minimum budget: where it stands in the way and how large it is. ``module`` is the path
    of the module that makes it; ``tensor`` names the operator too then."""

    tensor: str
    op: str
    size_bytes: Size
    module: str | None = None

    @property
    def words(self) -> str:
        """Name of the tensor for people, with its operator where its module is not known."""
        return f"{self.tensor} ({self.op})" if self.module is None else self.tensor


@dataclass(frozen=True)
class MemoryInfeasibility:
    """The reason why no plan exists, and what to relax.

    Attributes:
        minimum_budget_bytes: no plan exists below this (proved).
        short_bytes: how much more the budget needs at least.
        where, blockers: the operator that sets the minimum, and the tensors resident there, largest first.
        planned_budget_bytes: a budget that has a plan, which the planner finds at once; None if none was looked for.
    """

    leave_out_defaults: ClassVar = True

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str
    blockers: tuple[Blocker, ...]
    planned_budget_bytes: Size | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class MemoryPlan(Plan):
    """A checked answer to a memory problem.

    Attributes:
        objective, bound, gap: of the step; the bound comes from a relaxation only. ``gap`` is on the whole step,
            ``overhead_gap`` on what the budget costs over the unconstrained step.
        unconstrained: objective of the step with memory to spare.
        method: ``monet``, ``banded``, ``checkmate``, ...
        check: see :meth:`loadmaster.models.memory.verdict.MemoryCheck.summary`.
        schedule: None when infeasible.
    """

    budget_bytes: Size
    overhead_gap: float | None = None
    unconstrained: Total
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    schedule: Schedule | None = None
    infeasibility: MemoryInfeasibility | None = None

    kind: Literal["memory"] = "memory"

    @property
    def standing(self) -> str:
        """The status, for a person: ``optimal`` only where the asked gap is proved of the overhead too."""
        asked = self.options.get("gap")
        within = asked if isinstance(asked, int | float) else 0.0
        if self.status != "optimal" or not self.overhead_gap or self.overhead_gap <= within:
            return self.status
        return f"within {show_share(self.gap)} of the best step"
