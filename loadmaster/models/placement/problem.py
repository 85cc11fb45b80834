"""The ``placement`` problem: the trace of one training step over blocks of memory, and the tiers next to the device.

Operators i = 0..n-1 run in order, and the step then starts again: operator n is operator 0 of the next step. A block is
a piece of memory that moves as a whole: a tensor's storage, or a part of one. An operator needs every block that it
reads or writes on the device while it runs. Sizes are bytes, times microseconds. Sources: [DeepUM23] (blocks, kernels,
repeated steps), [Wu24] chapter 5 (tiers and their endurance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import READING, Ascending, Bounds, Gbps, Index, Name, PositiveSize, Size
from loadmaster.models.places import Placed
from loadmaster.models.shown import ShownProblem

# A year in microseconds.
LARGEST_US = 3.2e13

Us = Annotated[float, Bounds(ge=0, le=LARGEST_US)]
Role = Literal["activation", "input", "parameter", "gradient", "state"]


@dataclass(frozen=True)
class Tier:
    """Memory next to the device, behind a link of its own. Moves in both directions run at the same time, moves in one
    direction one after the other.

    Attributes:
        to_gbps, from_gbps: from the device to it and back, GB/s (1e9 bytes per second).
        latency_us: what every move takes apart from its bytes.
        capacity_bytes: None: more than is needed.
        endurance_bytes: how much can be written to it in its life; None: no end.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    to_gbps: Gbps
    from_gbps: Gbps
    latency_us: Us = 0.0
    capacity_bytes: Size | None = None
    endurance_bytes: PositiveSize | None = None

    def store_us(self, size_bytes: int) -> float:
        """Time to move that many bytes there."""
        return self.latency_us + size_bytes / (self.to_gbps * 1e3)

    def load_us(self, size_bytes: int) -> float:
        """Time to bring that many bytes back."""
        return self.latency_us + size_bytes / (self.from_gbps * 1e3)


@dataclass(frozen=True)
class Block:
    """A piece of memory that moves as a whole."""

    leave_out_defaults: ClassVar = True

    name: Name
    size_bytes: PositiveSize
    role: Role = "activation"


@dataclass(frozen=True)
class Operator(Placed):
    """One operator of the step. A block that it writes and does not read is written whole: what was in it before is not
    needed. Workspace is device memory that it takes for itself while it runs."""

    leave_out_defaults: ClassVar = True

    op: Name
    time_us: Us
    reads: Annotated[tuple[Index, ...], Ascending()] = ()
    writes: Annotated[tuple[Index, ...], Ascending()] = ()
    workspace_bytes: Size = 0
    module: str | None = None
    source: str | None = None

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that must be on the device while it runs, ascending."""
        return tuple(sorted({*self.reads, *self.writes}))


@dataclass(frozen=True, repr=False)
class PlacementProblem(ShownProblem):
    """One training step that repeats, and the places where its blocks may be. ``budget_bytes`` are device memory for
    blocks and workspace; None: to be given at planning time. ``captured_with`` are packages and their versions."""

    name: Name
    operators: Annotated[tuple[Operator, ...], Bounds(min_length=1, max_length=100_000)]
    blocks: Annotated[tuple[Block, ...], Bounds(min_length=1, max_length=100_000)]
    tiers: Annotated[tuple[Tier, ...], Bounds(min_length=1, max_length=8)]
    title: str | None = None
    budget_bytes: Size | None = None
    captured_with: Mapping[str, str] | None = None

    kind: Literal["placement"] = "placement"

    __pydantic_config__: ClassVar = READING

    @property
    def unit(self) -> str:
        """Unit of the time of a step, ``us``."""
        return "us"

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        return {"operators": len(self.operators), "blocks": len(self.blocks)}

    @property
    def compute_us(self) -> float:
        """The step with memory to spare."""
        return sum(o.time_us for o in self.operators)

    @cached_property
    def sha256(self) -> str:
        """Hash of trace and tiers, without the budget, names, places in the model and the tools of the capture."""
        left_out = ("name", "title", "budget_bytes", "captured_with")
        identity = {k: v for k, v in plain(self).items() if k not in left_out}
        for part in ("operators", "blocks", "tiers"):
            rows = identity[part]
            identity[part] = [{k: v for k, v in row.items() if k not in ("name", "module", "source")} for row in rows]
        return sha256(identity)
