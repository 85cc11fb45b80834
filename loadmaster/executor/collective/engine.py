"""Interface of engines, which run planned algorithms: the seam between the process group and what moves the bytes.

An engine is made once per plan and group, on every rank; the process group asks its engines in turn and gives a
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
        """Sums that the engine does, of ``torch.distributed.ReduceOp``; other calls go to the next engine."""
        ...

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Return whether the engine runs that algorithm on tensors of that type and device."""
        ...

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run the algorithm, on the current stream where the tensors are on a GPU.

        Args:
            output, input: flat and contiguous, of this rank; the same memory where the call is in place.
            op: of sums: one of ``operators``.
            size_bytes: of the largest buffer of a rank; a multiple of :func:`grain_bytes`.
        """
        ...


MakeEngine = Callable[[CollectiveProblem, CollectivePlan, dist.ProcessGroup, Place | None], Engine]
"""Makes an engine; every rank of the group calls it."""


class ReferenceEngine:
    """Engine that runs any algorithm on any device, by point-to-point messages."""

    name = "reference"
    operators = tuple(OPERATORS)

    def __init__(
        self, problem: CollectiveProblem, plan: CollectivePlan, group: dist.ProcessGroup, place: Place | None = None
    ) -> None:
        self.runner = Runner(problem, plan, group, place=place)

    def supports(self, collective: Collective, tensor: torch.Tensor, algorithm: Algorithm) -> bool:
        """Return True: messages run every algorithm on every tensor."""
        return True

    def run(
        self, algorithm: Algorithm, output: torch.Tensor | None, input: torch.Tensor | None, op: object, size_bytes: int
    ) -> None:
        """Run the algorithm by messages; arguments as in :meth:`Engine.run`."""
        self.runner.run(output, input, op, algorithm=algorithm, size_bytes=size_bytes)


def grain_bytes(problem: CollectiveProblem, algorithm: Algorithm, itemsize: int) -> int:
    """Bytes of which a size is a multiple where an algorithm runs it: every chunk is then of whole elements."""
    return cuts(problem, algorithm.chunk_count, algorithm.form) * itemsize
