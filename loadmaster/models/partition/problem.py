"""The ``partition`` problem: the operators of one training step, the ways to split each, and the mesh to split over.

A mesh has axes of so many workers each; a worker has a place on every axis. On each axis a tensor has a *part*, written
as PyTorch's DTensor does:

    S0, S1, ...   split along that dimension, each worker holds its share
    R             every worker holds all of it
    P             every worker holds a term of a sum

A tensor's *placement* is its part on each axis, outermost first: on a mesh of 2 x 4, (S0, S1) is rows over two, columns
over four; (S0, S0) is rows over eight. A *strategy* says, for one axis, what an operator needs of each input and what
it makes of each output when every worker of the axis runs it on its share: partition-n-reduce, [Wang20] section 3.3. An
operator has one strategy on every axis; every operator can also run whole on every worker. Sizes are bytes, times
microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.fields import READING, Bounds, Gbps, Index, Name, Size
from loadmaster.models.places import Placed
from loadmaster.models.shown import ShownProblem

LARGEST_US = 1e12
# Between GPUs of one mesh.
LARGEST_RATIO = 1e3

Us = Annotated[float, Bounds(ge=0, le=LARGEST_US)]
Part = Annotated[str, Bounds(pattern=r"^(R|P|S[0-9])$")]
Extent = Annotated[int, Bounds(ge=1, le=1 << 40)]
Role = Literal["input", "parameter", "gradient", "state", "activation"]

# What is in memory for the whole step. Everything else lives from the operator that makes it to its last reader.
LASTING = frozenset({"input", "parameter", "state"})


@dataclass(frozen=True)
class Axis:
    """One direction of the mesh. Its workers may be unequal: a worker's speed is the product of those of its places on
    all axes, and so is its part of the budget.

    Attributes:
        size: workers along it.
        gbps: what each of them receives over it, GB/s (1e9 bytes per second).
        latency_us: what every collective along it takes apart from its bytes.
        weights: for each place on it, of how many of their sum the worker there has a share; empty: equal shares.
        speeds: for each place, how fast a worker computes; operators' times are those of speed 1. Empty: all 1.
        memory_factors: for each place, the part of the budget that a worker has; the largest is 1. Empty: all 1.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    size: Annotated[int, Bounds(ge=2, le=4096)]
    gbps: Gbps
    latency_us: Us = 0.0
    weights: tuple[Annotated[int, Bounds(ge=1, le=int(LARGEST_RATIO))], ...] = ()
    speeds: tuple[Annotated[float, Bounds(ge=1 / LARGEST_RATIO, le=LARGEST_RATIO)], ...] = ()
    memory_factors: tuple[Annotated[float, Bounds(ge=LARGEST_RATIO**-2, le=1)], ...] = ()

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Units that the worker at each place has of what is split: weights without a common divisor."""
        divisor = math.gcd(*self.weights)
        return tuple(weight // divisor for weight in self.weights) or (1,) * self.size

    @cached_property
    def units(self) -> int:
        """Number of equal units into which a dimension that is split along the axis must divide."""
        return sum(self.shares)

    @property
    def is_even(self) -> bool:
        """True if all shares are equal."""
        return self.units == self.size

    @cached_property
    def slowest(self) -> tuple[float, float]:
        """Work of the slowest worker over its speed: all of the work, and its units where that is divided."""
        speeds = self.speeds or (1.0,) * self.size
        return 1 / min(speeds), max(share / speed for share, speed in zip(self.shares, speeds, strict=True))


@dataclass(frozen=True)
class Tensor:
    """A value of the step, with the shape of the whole; tensors of one tie have one placement."""

    leave_out_defaults: ClassVar = True

    name: Name
    shape: Annotated[tuple[Extent, ...], Bounds(max_length=10)]
    element_bytes: Annotated[int, Bounds(ge=1, le=16)] = 4
    role: Role = "activation"
    tie: Name | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class Need:
    """The part of an input that a strategy needs; where it is split, with a halo of elements ``before`` and
    ``after``."""

    leave_out_defaults: ClassVar = True

    part: Part
    before: Size = 0
    after: Size = 0


@dataclass(frozen=True)
class Strategy:
    """One way to run an operator on one axis.

    Attributes:
        name: of what is split: an index of the output, or one that is summed over.
        inputs, outputs: in the operator's order.
        divides: whether each worker does a share of the work; if not, all do all of it.
        shares_divide: the number of equal units must divide this, too: heads, of a dimension of heads x width.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    inputs: tuple[Need, ...]
    outputs: tuple[Part, ...]
    divides: bool = True
    shares_divide: Extent | None = None


@dataclass(frozen=True)
class Signature:
    """The strategies of a sort of operator.

    Attributes:
        elementwise: every output element needs the same element of every input, and of nothing else.
        copy: its one output is its input, brought to where several operators need it (:mod:`.copies`). It runs where
            its output is stored; where its input is stored there too, the two are one.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    strategies: Annotated[tuple[Strategy, ...], Bounds(min_length=1, max_length=100)]
    elementwise: bool = False
    copy: bool = False


@dataclass(frozen=True)
class Operator(Placed):
    """One operator of the step. An input that it updates in place (a parameter) is no output: it keeps its placement.

    Attributes:
        signature: its number in the problem's list.
        time_us: on one GPU that does all of it.
        launch_us: of that, what every worker takes however small its share.
        tie: operators of one tie have one strategy on every axis.
    """

    leave_out_defaults: ClassVar = True

    op: Name
    signature: Index
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...] = ()
    time_us: Us = 0.0
    launch_us: Us = 0.0
    tie: Name | None = None
    module: str | None = None
    source: str | None = None

    def worker_us(self, share: float) -> float:
        """Time of a worker of speed 1 that does such a share of the work."""
        return self.launch_us + share * (self.time_us - self.launch_us)


@dataclass(frozen=True, repr=False)
class PartitionProblem(ShownProblem):
    """One training step and the mesh that it is split over.

    Attributes:
        objective: ``bytes`` that all workers receive together, or ``time`` of the step.
        replicas: whether tensors may be stored whole on several workers. Without, every worker stores its share of
            every tensor that can be divided, as in [Wang20].
        overlap: how much of a gathered parameter's or a summed gradient's time is hidden behind kernels; None: nothing.
        budget_bytes: memory of one worker, of the largest where they are unequal; None: to be given at planning time.
    """

    name: Name
    axes: Annotated[tuple[Axis, ...], Bounds(min_length=1, max_length=4)]
    tensors: Annotated[tuple[Tensor, ...], Bounds(min_length=1, max_length=200_000)]
    operators: Annotated[tuple[Operator, ...], Bounds(min_length=1, max_length=100_000)]
    signatures: Annotated[tuple[Signature, ...], Bounds(min_length=1, max_length=10_000)]
    objective: Literal["bytes", "time"] = "time"
    replicas: bool = True
    overlap: Annotated[float, Bounds(ge=0, lt=1)] | None = None
    title: str | None = None
    budget_bytes: Size | None = None

    kind: Literal["partition"] = "partition"

    __pydantic_config__: ClassVar = READING

    @property
    def unit(self) -> str:
        """Unit of objectives, ``bytes`` or ``us``."""
        return "bytes" if self.objective == "bytes" else "us"

    @property
    def workers(self) -> int:
        """Number of workers of the mesh."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """Size of the problem, for a person who waits for its plan."""
        return {"operators": len(self.operators), "tensors": len(self.tensors), "workers": self.workers}

    @cached_property
    def copied(self) -> dict[int, int]:
        """Tensors that are copies -> what each is a copy of."""
        return {o.outputs[0]: o.inputs[0] for o in self.operators if self.is_copy(o)}

    def is_copy(self, operator: Operator) -> bool:
        """Return whether an operator's result is its input, brought elsewhere."""
        return self.signatures[operator.signature].copy

    def original(self, tensor: int) -> int:
        """The tensor that a tensor is a copy of, at last; itself if it is not a copy."""
        while tensor in self.copied:
            tensor = self.copied[tensor]
        return tensor

    def strategies(self, operator: Operator) -> tuple[Strategy, ...]:
        """Strategies of an operator's signature, and the one by which every worker does all of it."""
        whole = Strategy("whole", (Need("R"),) * len(operator.inputs), ("R",) * len(operator.outputs), divides=False)
        return (*self.signatures[operator.signature].strategies, whole)

    @cached_property
    def sha256(self) -> str:
        """Hash of graph and mesh: neither the budget nor names and places in the model enter it."""
        identity = {k: v for k, v in plain(self).items() if k not in ("name", "title", "budget_bytes")}
        for part in ("axes", "tensors", "operators", "signatures"):
            identity[part] = [
                {k: v for k, v in row.items() if k not in ("name", "module", "source")} for row in identity[part]
            ]
        return sha256(identity)
