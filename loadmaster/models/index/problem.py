"""The ``index`` problem: shards of keys, configurations that could serve them, hosts with so many bytes and threads.

What is to be found: one configuration for each shard, and the thread that serves it where that is not given. What is
minimized is the time of all operations of a horizon, and of rebuilding shards whose configuration changes: of all
threads together, or of the one that has most to do. After [Shah23], section 6.3, where one index is configured for
speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import READING, Bounds, Index, Name, Size, ToldBy
from loadmaster.models.index.configuration import Configuration
from loadmaster.models.index.features import Features
from loadmaster.models.shown import ShownProblem

_Amount = Annotated[float, Bounds(ge=0, le=1e15)]
_Candidate = Annotated[Configuration, ToldBy("structure")]
_Count = Annotated[float, Bounds(ge=0, le=1e15)]


@dataclass(frozen=True)
class Figure:
    """An expected value, and the quantiles 0.1 and 0.9 where it was predicted; None where it was measured."""

    leave_out_defaults: ClassVar = True

    expected: _Amount
    lower: _Amount | None = None
    upper: _Amount | None = None

    @property
    def most(self) -> float:
        """The upper quantile: what promises are made with."""
        return self.expected if self.upper is None else self.upper


@dataclass(frozen=True)
class Predicted:
    """Prediction for a configuration before it ran; fields as those of :class:`Cost`."""

    leave_out_defaults: ClassVar = True

    read_ns: Figure
    peak_bytes: Figure
    write_ns: Figure | None = None
    scan_ns: Figure | None = None


@dataclass(frozen=True)
class Cost:
    """Times and memory of one configuration on one shard.

    Attributes:
        read_ns: processor time of a lookup.
        peak_bytes: the most that the index takes while the operations run.
        write_ns: of an insert or an erase; None of what is only read.
        rebuild_us: of making it from the keys in another form.
        pause_us: the longest that one operation waits for a change of structure.
        scan_ns: of a scan; None: a lookup's.
        measured: it ran; otherwise it is predicted.
        predicted: of what was measured, what was expected of it.
    """

    leave_out_defaults: ClassVar = True

    read_ns: Figure
    peak_bytes: Figure
    write_ns: Figure | None = None
    rebuild_us: _Amount = 0.0
    pause_us: Figure | None = None
    scan_ns: Figure | None = None
    measured: bool = False
    predicted: Predicted | None = None


@dataclass(frozen=True)
class Operations:
    """Number of operations of each sort in the horizon."""

    leave_out_defaults: ClassVar = True

    lookups: _Count = 0.0
    inserts: _Count = 0.0
    erases: _Count = 0.0
    scans: _Count = 0.0

    @property
    def writes(self) -> float:
        """Number of operations that change the index."""
        return self.inserts + self.erases

    @property
    def total(self) -> float:
        """Number of operations of all sorts."""
        return self.lookups + self.writes + self.scans


@dataclass(frozen=True)
class Shard:
    """Keys that one index holds.

    Attributes:
        keys: that it holds to begin with.
        costs: for every candidate what it comes to here; None: it is not to be taken.
        ordered: whether ranges or order are asked for, in addition to the scans of the horizon.
        current: the candidate that it is built as; None: it is not built yet, and costs the same to build for all.
        host: the number of the host that it lives on.
        thread: of that host; None: to be chosen.
        features: of its trace, where it was seen.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    keys: Size
    operations: Operations
    costs: Annotated[tuple[Cost | None, ...], Bounds(min_length=1, max_length=1000)]
    ordered: bool = False
    current: Index | None = None
    host: Index = 0
    thread: Index | None = None
    features: Features | None = None


@dataclass(frozen=True)
class Host:
    """A machine on which shards live. Each of its threads serves one shard's operation at a time. Its memory for
    indexes is given where it is less than the budget; None: as much as the budget."""

    name: Name
    threads: Annotated[int, Bounds(ge=1, le=4096)] = 1
    memory_bytes: Size | None = None


@dataclass(frozen=True, repr=False)
class IndexProblem(ShownProblem):
    """Shards to be configured.

    Attributes:
        objective: time of all threads together, or of the one that has most to do.
        longest_pause_us: candidates that may make an operation wait longer are not taken; None: any may be.
        budget_bytes: for the indexes of each host; None: to be given at planning time.
    """

    name: Name
    candidates: Annotated[tuple[_Candidate, ...], Bounds(min_length=1, max_length=1000)]
    shards: Annotated[tuple[Shard, ...], Bounds(min_length=1, max_length=10_000)]
    hosts: Annotated[tuple[Host, ...], Bounds(min_length=1, max_length=10_000)] = (Host("host"),)
    objective: Literal["sum", "longest-thread"] = "sum"
    longest_pause_us: Annotated[float, Bounds(gt=0)] | None = None
    title: str | None = None
    budget_bytes: Size | None = None

    kind: Literal["index"] = "index"
    unit: ClassVar[str] = "us"

    __pydantic_config__: ClassVar = READING

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        return {
            "shards": len(self.shards),
            "candidates": len(self.candidates),
            "hosts": len(self.hosts),
            "threads": sum(host.threads for host in self.hosts),
        }

    def room_bytes(self, host: int, budget_bytes: int) -> int:
        """Bytes that a host has for indexes under a budget."""
        own = self.hosts[host].memory_bytes
        return budget_bytes if own is None else min(own, budget_bytes)

    @cached_property
    def sha256(self) -> str:
        """Hash of shards, candidates and hosts: neither the budget nor names of the problem enter it."""
        return sha256({k: v for k, v in plain(self).items() if k not in ("name", "title", "budget_bytes")})
