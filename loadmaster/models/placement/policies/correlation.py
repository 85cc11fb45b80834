"""Correlation prefetching with pre-eviction [DeepUM23], as a policy of the simulator.

What the chain of predicted kernels holds and the device does not is brought early; what is not in it, and arrived
longest ago, leaves for that (section 5.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from loadmaster.models.placement.policies.chain import ASSOCIATIVITY, KERNELS, ROWS, SUCCESSORS, Chain
from loadmaster.models.placement.policies.policy import Memory, Policy
from loadmaster.models.placement.policies.tables import execution_ids
from loadmaster.models.placement.problem import Operator, PlacementProblem


class Correlation(Policy):
    """The least recently migrated block that is not predicted leaves; predicted ones come early. Parameters are those
    of :class:`~loadmaster.models.placement.policies.chain.Chain`; what is missing is in the tier."""

    name = "correlation"

    def __init__(
        self,
        problem: PlacementProblem,
        *,
        kernels: int = KERNELS,
        window_bytes: int | None = None,
        rows: int = ROWS,
        associativity: int = ASSOCIATIVITY,
        successors: int = SUCCESSORS,
    ) -> None:
        super().__init__()
        self._ids = execution_ids(problem)
        sizes = [block.size_bytes for block in problem.blocks]
        self._memory: Memory | None = None
        self._chain = Chain(
            self._is_away,
            sizes.__getitem__,
            kernels=kernels,
            window_bytes=window_bytes,
            rows=rows,
            associativity=associativity,
            successors=successors,
        )

    def start(self, memory: Memory) -> None:
        self._memory = memory

    def starts(self, operator: Operator, position: int) -> None:
        self._chain.observe(self._ids[position % len(self._ids)], operator.blocks)

    def arrived(self, block: int) -> None:
        super().arrived(block)
        self._chain.found(block)

    def left(self, block: int) -> None:
        super().left(block)
        self._chain.lost(block)

    def victim(self, pinned: Collection[int]) -> int | None:
        early = self.early_victim(pinned)
        return super().victim(pinned) if early is None else early

    def early_victim(self, pinned: Collection[int]) -> int | None:
        predicted = self._chain.predicted
        return next((block for block in self._here if block not in predicted and block not in pinned), None)

    def wanted(self) -> Iterable[int]:
        return self._chain.missing

    def _is_away(self, block: int) -> bool:
        assert self._memory is not None
        return self._memory.is_away(block)
