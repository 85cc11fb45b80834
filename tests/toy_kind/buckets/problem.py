"""A ``buckets`` problem and its plan, as typed data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated

from loadmaster.models.canonical import plain, sha256
from loadmaster.models.envelope import Plan
from loadmaster.models.fields import READING, Bounds, Index, Name, PositiveSize
from loadmaster.models.shown import ShownProblem

Time = Annotated[float, Bounds(ge=0, le=1e12)]


@dataclass(frozen=True)
class Gradient:
    """One gradient: when the backward pass has it, and how large it is."""

    ready_us: Time
    size_bytes: PositiveSize


@dataclass(frozen=True, repr=False)
class BucketsProblem(ShownProblem):
    """Gradients in the order of the backward pass, and the link that they go over, one message at a time.

    Attributes:
        messages: at most so many; None: the limit comes with the options.
    """

    name: Name
    gradients: Annotated[tuple[Gradient, ...], Bounds(min_length=1, max_length=10_000)]
    latency_us: Time
    gbps: Annotated[float, Bounds(gt=0, le=1e6)]
    messages: Annotated[int, Bounds(ge=1)] | None = None
    title: str | None = None

    kind: str = "buckets"

    __pydantic_config__ = READING

    @property
    def unit(self) -> str:
        """Of the time when all have arrived."""
        return "us"

    @property
    def sizes(self) -> dict[str, int]:
        """How large the problem is."""
        return {"gradients": len(self.gradients)}

    @cached_property
    def sha256(self) -> str:
        """Neither the names nor the limit enter it."""
        identity = plain(asdict(self))
        return sha256({key: value for key, value in identity.items() if key not in ("name", "title", "messages")})

    def message_us(self, first: int, end: int) -> float:
        """How long gradients ``first`` to ``end`` (not included) take as one message. 1 GB/s is 1e3 bytes/us."""
        return self.latency_us + sum(g.size_bytes for g in self.gradients[first:end]) / (1e3 * self.gbps)


@dataclass(frozen=True, kw_only=True, repr=False)
class BucketsPlan(Plan):
    """A checked answer.

    Attributes:
        messages: the limit that it was made under.
        ends: for each message, the gradient after its last, ascending; the last one is their number.
    """

    messages: Annotated[int, Bounds(ge=0)]
    ends: tuple[Index, ...] = ()
    kind: str = "buckets"
