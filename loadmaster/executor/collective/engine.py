"""What runs a planned algorithm: the seam between the process group and those that move the bytes.

An engine is made once per plan and group, on every rank alike; the process group asks its engines in turn and gives a
call to the first that supports it. What an engine answers must be the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from loadmaster.executor.collective.agreement import Place
from loadmaster.executor.collective.reference import Runner
from loadmaster.executor.collective.sums import OPERATORS
from loadmaster.models.collective.collectives import cuts
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem


class Engine(Protocol):
    """Runs the algorithms of one plan on one group.

    Attributes:
        name: for :func:`loadmaster.executor.collective.stats`.
    """

    name: str

    @property
    def operators(self) -> tuple[object, ...]:
        """The sums that it does, of ``torch.distributed.ReduceOp``; other calls go to the next engine."""
        ...

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Whether it runs that algorithm on tensors of that type and device."""
        ...

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run it, on the current stream where the tensors are on a GPU.

        Args:
            output, input: flat and contiguous, of this rank; the same memory where the call is in place.
            op: of sums: one of ``operators``.
            size_bytes: of the largest buffer of a rank; a multiple of :func:`grain_bytes`.
        """
        ...


MakeEngine = Callable[[CollectiveProblem, CollectivePlan, dist.ProcessGroup, Place | None], Engine]
"""Makes an engine; every rank of the group calls it."""


class ReferenceEngine:
    """Any algorithm, on any device, by point-to-point messages."""

    name = "reference"
    operators = tuple(OPERATORS)

    def __init__(
        self, problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place | None = None
    ) -> None:
        self.runner = Runner(problem, plan, group, place=place)

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Always."""
        return True

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """See :class:`Engine`."""
        self.runner.run(output, input, op, algorithm=algorithm, size_bytes=size_bytes)


def grain_bytes(problem: CollectiveProblem, algorithm: Algorithm, itemsize: int) -> int:
    """An algorithm runs any size that is a multiple of this: every chunk is then of whole elements."""
    return cuts(problem, algorithm.chunk_count, algorithm.form) * itemsize
