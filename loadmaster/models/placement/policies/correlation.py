"""Correlation prefetching with pre-eviction [DeepUM23]: what comes next is what came next the last time.

When a kernel starts, the tables learn it: which kernel it followed, and its blocks in order. Then the *chain* is
extended: the next kernel is looked up by the three before and the current one, its blocks from its start block on,
until ``kernels`` kernels are predicted, or ``window_bytes`` of what they use is in the tier. Where another kernel
starts than was predicted, the chain begins anew at that one. What the chain holds and the device does not is brought
early; what is not in it, and arrived longest ago, leaves for that (section 5.1).

Two things are not as in the paper. A runtime that sees every operator knows all blocks that it uses, not only those
that fault: the tables record them all. And since the operators of all layers can have one execution id here (in the
paper they differ by their addresses), start and end block of a kernel depend on the block that the kernel before ended
with; of several kernels that came next, the one is predicted that was seen after that block.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

from loadmaster.models.placement.policies.policy import Memory, Policy
from loadmaster.models.placement.policies.tables import BlockTable, ExecutionTable, History, execution_ids
from loadmaster.models.placement.problem import Operator, PlacementProblem

# [DeepUM23] sections 6.2 and 6.4.
KERNELS, ROWS, ASSOCIATIVITY, SUCCESSORS = 32, 2048, 2, 4
_NOBODY = -1


class _Link(NamedTuple):
    """A kernel of the chain, with its blocks; ``last`` is the one at which the next kernel is picked up."""

    kernel: int
    before: History
    blocks: tuple[int, ...]
    last: int


class Correlation(Policy):
    """The least recently migrated block that is not predicted leaves; predicted ones come early.

    Args:
        kernels: how many kernels are predicted ahead (N).
        window_bytes: no more is predicted while so much of what is predicted is in the tier; None: no bound.
        rows, associativity, successors: of the block table of every kernel.
    """

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
        self._sizes = [block.size_bytes for block in problem.blocks]
        self._kernels, self._window_bytes = kernels, window_bytes
        self._shape = (rows, associativity, successors)
        self._order = ExecutionTable()
        self._tables: dict[int, BlockTable] = {}
        # (kernel, last block of the kernel before) -> its start and its end block.
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        self._current = _Link(_NOBODY, (_NOBODY,) * 3, (), _NOBODY)
        self._chain: deque[_Link] = deque()
        self._predicted: Counter[int] = Counter()
        # Predicted, and in the tier; in the order of the chain.
        self._missing: dict[int, bool] = {}
        self._missing_bytes = 0
        self._memory: Memory | None = None

    def start(self, memory: Memory) -> None:
        self._memory = memory

    def starts(self, operator: Operator, position: int) -> None:
        link = self._learn(self._ids[position % len(self._ids)], operator.blocks)
        if self._chain and self._chain[0].kernel == link.kernel and set(link.blocks) <= set(self._chain[0].blocks):
            self._forget(self._chain.popleft())
        else:
            while self._chain:
                self._forget(self._chain.popleft())
        self._current = link
        self._extend()

    def arrived(self, block: int) -> None:
        super().arrived(block)
        self._found(block)

    def left(self, block: int) -> None:
        super().left(block)
        self._miss(block)

    def victim(self, pinned: Collection[int]) -> int | None:
        early = self.early_victim(pinned)
        return super().victim(pinned) if early is None else early

    def early_victim(self, pinned: Collection[int]) -> int | None:
        predicted = self._predicted
        return next((block for block in self._here if block not in predicted and block not in pinned), None)

    def wanted(self) -> Iterable[int]:
        return self._missing

    def _learn(self, kernel: int, blocks: tuple[int, ...]) -> _Link:
        """What has just started, recorded after what ran before it."""
        past = self._current
        before = (past.before[1], past.before[2], past.kernel)
        if past.kernel != _NOBODY:
            self._order.record(past.before, past.kernel, kernel)
        last = blocks[-1] if blocks else past.last
        if blocks:
            table = self._tables.setdefault(kernel, BlockTable(*self._shape))
            self._ends[kernel, past.last] = (blocks[0], last)
            for block, following in pairwise(blocks):
                table.record(block, following)
        return _Link(kernel, before, blocks, last)

    def _extend(self) -> None:
        """Chain on from the last kernel that is predicted, or the one that starts."""
        link = self._chain[-1] if self._chain else self._current
        while len(self._chain) < self._kernels:
            if self._window_bytes is not None and self._missing_bytes >= self._window_bytes:
                return
            kernels = self._order.predict(link.before, link.kernel)
            if not kernels:
                return
            kernel = next((kernel for kernel in kernels if (kernel, link.last) in self._ends), kernels[0])
            blocks, last = self._walk(kernel, link.last)
            link = _Link(kernel, (link.before[1], link.before[2], link.kernel), blocks, last)
            self._chain.append(link)
            for block in link.blocks:
                self._predicted[block] += 1
                self._miss(block)

    def _walk(self, kernel: int, last: int) -> tuple[tuple[int, ...], int]:
        """The blocks that a kernel is expected to use after another one ended with ``last``: along the latest
        successors to the end, and all other successors on the way."""
        if (kernel, last) not in self._ends:
            return (), last
        block, end = self._ends[kernel, last]
        table = self._tables[kernel]
        found, path = {block: True}, {block}
        while block != end:
            following = table.following(block)
            found |= dict.fromkeys(following, True)
            if not following or following[0] in path:
                break
            block = following[0]
            path.add(block)
        return tuple(found), end

    def _forget(self, link: _Link) -> None:
        for block in link.blocks:
            self._predicted[block] -= 1
            if not self._predicted[block]:
                del self._predicted[block]
                self._found(block)

    def _miss(self, block: int) -> None:
        assert self._memory is not None
        if block in self._predicted and block not in self._missing and self._memory.is_away(block):
            self._missing[block] = True
            self._missing_bytes += self._sizes[block]

    def _found(self, block: int) -> None:
        if self._missing.pop(block, False):
            self._missing_bytes -= self._sizes[block]
