"""The ``collective`` plan: a table of algorithms by size, each a list of timed sends, with their proofs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from loadmaster.models.collective.problem import Count
from loadmaster.models.envelope import Plan
from loadmaster.models.fields import Bounds, Index, PositiveSize, Seconds, Size
from loadmaster.models.topologies.topology import LARGEST_NS, Rank

Time = Annotated[int, Bounds(ge=0, le=LARGEST_NS)]

Form = Literal["direct", "gather"]
"""How an algorithm reaches the postcondition: ``direct``: its sends do it, sums on the way. ``gather``: every rank
gathers every rank's whole input (an AllGather of the inputs), then adds them up itself, in the order of ranks; of
AllReduce, Reduce and ReduceScatter where few bytes make steps dear. A partial sum that is sent on and grows afterwards
(recursive doubling that exchanges sums) is of neither form: no plan holds it, and no bound speaks of it."""


@dataclass(frozen=True)
class Send:
    """One message: chunks that travel together over the link from one rank to another.

    Attributes:
        chunks: ascending; they hold the link's resources once, with their bytes together.
        combines: the target adds what arrives to its own part; otherwise it keeps a copy.
    """

    leave_out_defaults: ClassVar = True

    start_ns: Time
    source: Rank
    target: Rank
    chunks: tuple[Index, ...]
    combines: bool = False


@dataclass(frozen=True)
class Algorithm:
    """A schedule for one collective at one size, with its bound.

    Attributes:
        size_bytes: planned for; the largest buffer of a rank (see :mod:`loadmaster.models.collective.collectives`).
        chunk_count: parts that each rank's piece is cut into.
        sends: by start time, then source, then target.
        time_ns: when the last chunk is where it must be.
        bound_ns: proved: no algorithm that the problem allows is faster, of whatever form, and of whatever number of
            chunks where the problem names none (:mod:`loadmaster.models.collective.proof`).
        bound_by: the argument that gave the bound, of the form that it lets be fastest.
        throughput_bound_ns: proved from bandwidth alone.
        from_bytes: of the sizes up to the next algorithm's ``from_bytes``, this one is the fastest of the table.
    """

    size_bytes: PositiveSize
    chunk_count: Count
    form: Form
    sends: tuple[Send, ...]
    time_ns: Time
    bound_ns: Time
    bound_by: str
    throughput_bound_ns: Time
    from_bytes: Size = 0
    method: str = ""
    seconds: Seconds = 0.0

    @property
    def gap(self) -> float:
        """Relative gap to the bound, (time - bound) / time."""
        return (self.time_ns - self.bound_ns) / self.time_ns if self.time_ns else 0.0


@dataclass(frozen=True)
class Unreachable:
    """The reason, ``why``, that no schedule exists: chunks that cannot reach a rank, and the cut that keeps them from
    it. ``chunk`` is the first such chunk, in the first chunk count tried; ``rank`` a target it cannot reach;
    ``reached``, ascending, the ranks it can: no usable link leaves this set."""

    chunk: Index
    rank: Rank
    reached: tuple[Rank, ...]
    why: str


@dataclass(frozen=True, kw_only=True, repr=False)
class CollectivePlan(Plan):
    """A checked answer to a collective problem. Its objective, bound and gap are of the times of all algorithms
    together. ``algorithms`` ascend by size; there are none when it is infeasible."""

    algorithms: tuple[Algorithm, ...] = ()
    infeasibility: Unreachable | None = None

    kind: Literal["collective"] = "collective"

    def algorithm_for(self, size_bytes: int) -> Algorithm:
        """The algorithm of the table for a size: the last whose ``from_bytes`` is not above it."""
        found = self.algorithms[0]
        for algorithm in self.algorithms:
            if algorithm.from_bytes <= size_bytes:
                found = algorithm
        return found
