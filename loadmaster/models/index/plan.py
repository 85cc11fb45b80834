"""The ``index`` plan: a configuration for each shard, the thread that serves it, and whether changes pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from loadmaster.models.envelope import Plan
from loadmaster.models.fields import Bounds, Entries, Index, Size

_Us = Annotated[float, Bounds(ge=0, le=1e18)]
CHECKED: Mapping[str, Any] = {"ok": bool, "total_us": _Us, "longest_us": _Us, "peak_bytes": Index, "peak_at": str}


@dataclass(frozen=True)
class Choice:
    """Configuration and thread of one shard, with its time and memory.

    Attributes:
        thread: of its host; None where the objective is the sum and none was given.
        time_us: of its operations in the horizon, and of its rebuild where it changes.
        peak_bytes: that are kept free for it.
    """

    leave_out_defaults: ClassVar = True

    candidate: Index
    time_us: _Us
    peak_bytes: Size
    thread: Index | None = None


@dataclass(frozen=True)
class Change:
    """A change of a built shard, made by the plan or worth making in the long run.

    Attributes:
        current: the candidate that it is built as.
        to: the one that it is to become; where it stays, the one that would be quickest in the long run.
        made: whether the plan changes it.
        pays_after_operations: so many of the shard's operations save what the rebuild takes; None: they never do, and
            the change is made for its memory, or because the current one cannot serve.
    """

    leave_out_defaults: ClassVar = True

    shard: Index
    current: Index
    to: Index
    made: bool
    rebuild_us: _Us
    pays_after_operations: _Us | None = None


@dataclass(frozen=True)
class IndexInfeasibility:
    """The reason why no plan exists: host ``where`` needs ``minimum_budget_bytes``, most of it for ``largest``. Unless
    ``budget_helps``, the host itself has to have more."""

    minimum_budget_bytes: Size
    short_bytes: Size
    where: str
    largest: tuple[str, ...] = ()
    budget_helps: bool = True


@dataclass(frozen=True, kw_only=True, repr=False)
class IndexPlan(Plan):
    """A checked answer to an index problem (see :func:`loadmaster.models.index.checker.check`): a choice for every
    shard, none when infeasible; of shards that are built already, those that change or would gain in the long run."""

    budget_bytes: Size
    check: Annotated[Mapping[str, Any], Entries(CHECKED)]
    choices: tuple[Choice, ...] = ()
    changes: tuple[Change, ...] = ()
    infeasibility: IndexInfeasibility | None = None

    kind: Literal["index"] = "index"
