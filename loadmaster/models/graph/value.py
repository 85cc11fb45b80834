"""Value of a graph program: the operator that makes it, and the operator's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from loadmaster.models.fields import Bounds, Index, Name
from loadmaster.models.graph.spaces import Space

Extent = Annotated[int, Bounds(ge=1, le=1 << 20)]
# Operators of values that are given, not computed.
GIVEN = frozenset({"feature", "parameter", "degree", "gradient"})


@dataclass(frozen=True)
class Value:
    """Value of a graph program, with the operator that makes it.

    Attributes:
        op: the operator that makes it, a key of :data:`loadmaster.models.graph.operators.OPERATORS`.
        inputs: the numbers of values before it.
        number: the operator's own number: the slope of ``leaky_relu``, the start of a ``part``.
        count: the operator's own count: heads of ``split_heads``, numbers of a ``part``.
        space: of a given value, or of the result of an ``aggregate``, ``outer`` or ``spread``; None elsewhere.
        over: the rows that an ``aggregate`` or ``outer`` runs over; None elsewhere.
        reduce: reduction of an ``aggregate``; None elsewhere.
        shape: of a given value; None elsewhere.
    """

    leave_out_defaults: ClassVar = True

    name: Name
    op: Name
    inputs: tuple[Index, ...] = ()
    number: float | None = None
    count: Extent | None = None
    space: Space | None = None
    over: Space | None = None
    reduce: Annotated[str, Bounds(pattern=r"^(sum|mean|max|min|logsumexp)$")] | None = None
    shape: Annotated[tuple[Extent, ...], Bounds(max_length=3)] | None = None
