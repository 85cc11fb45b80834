"""The chain of kernels that correlation prefetching [DeepUM23] predicts: what comes next is what came next last time.

When a kernel starts, the tables learn it: which kernel it followed, and its blocks in order. Then the *chain* is
extended: the next kernel is looked up by the three before and the current one, its blocks from its start block on,
until ``kernels`` kernels are predicted, or ``window_bytes`` of what they use is missing. Where another kernel starts
than was predicted, the chain begins again at that one (section 4.2).

Two things are not as in the paper. A runtime that sees every operator knows all blocks that it uses, not only those
that fault: the tables record them all. And since the operators of all layers can have one execution id here (in the
paper they differ by their addresses), start and end block of a kernel depend on the block that the kernel before ended
with; of several kernels that came next, the one is predicted that was seen after that block.

The simulator's policy drives it, and so does the executor's pager.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from loadmaster.models.placement.policies.tables import BlockTable, ExecutionTable, History

# [DeepUM23] sections 6.2 and 6.4.
KERNELS, ROWS, ASSOCIATIVITY, SUCCESSORS = 32, 2048, 2, 4
_NOBODY = -1


class _Link(NamedTuple):
    """A kernel of the chain, with its blocks; ``last`` is the one at which the next kernel is picked up."""

    kernel: int
    before: History
    blocks: tuple[int, ...]
    last: int


class Chain:
    """Learns the kernels that start, and predicts those that follow.

    Args:
        is_missing: whether a block should be brought if it is predicted.
        kernels: how many kernels are predicted ahead (N).
        window_bytes: no more is predicted while so much of what is predicted is missing; None: no bound.
        rows, associativity, successors: of the block table of every kernel.
    """

    def __init__(
        self,
        is_missing: Callable[[int], bool],
        size_bytes: Callable[[int], int],
        *,
        kernels: int = KERNELS,
        window_bytes: int | None = None,
        rows: int = ROWS,
        associativity: int = ASSOCIATIVITY,
        successors: int = SUCCESSORS,
    ) -> None:
        self._is_missing, self._size_bytes = is_missing, size_bytes
        self._kernels, self._window_bytes = kernels, window_bytes
        self._shape = (rows, associativity, successors)
        self._order = ExecutionTable()
        self._tables: dict[int, BlockTable] = {}
        # (kernel, last block of the kernel before) -> its start and its end block.
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        self._current = _Link(_NOBODY, (_NOBODY,) * 3, (), _NOBODY)
        self._chain: deque[_Link] = deque()
        self._predicted: Counter[int] = Counter()
        # Predicted and missing, with their sizes; in the order of the chain.
        self._missing: dict[int, int] = {}
        self._missing_bytes = 0

    @property
    def predicted(self) -> Container[int]:
        """Blocks that are in the chain."""
        return self._predicted

    @property
    def missing(self) -> Iterable[int]:
        """Predicted blocks that should be brought, soonest first."""
        return self._missing

    def observe(self, kernel: int, blocks: Sequence[int]) -> None:
        """Learn a kernel that starts, with its blocks, and extend the chain."""
        link = self._learn(kernel, tuple(blocks))
        if self._chain and self._chain[0].kernel == link.kernel and set(link.blocks) <= set(self._chain[0].blocks):
            self._forget(self._chain.popleft())
        else:
            self._drop()
        self._current = link
        self._extend()

    def interrupt(self) -> None:
        """Drop the chain where what ran since the last kernel was not observed: nothing follows it."""
        self._drop()
        self._current = _Link(_NOBODY, (_NOBODY,) * 3, (), _NOBODY)

    def found(self, block: int) -> None:
        """Note that a block is not missing any more."""
        self._missing_bytes -= self._missing.pop(block, 0)

    def lost(self, block: int) -> None:
        """Note that a block may be missing from now on."""
        if block in self._predicted and block not in self._missing and self._is_missing(block):
            self._missing[block] = self._size_bytes(block)
            self._missing_bytes += self._missing[block]

    def _learn(self, kernel: int, blocks: tuple[int, ...]) -> _Link:
        past = self._current
        before = (past.before[1], past.before[2], past.kernel)
        if past.kernel != _NOBODY:
            self._order.record(past.before, past.kernel, kernel)
        last = blocks[-1] if blocks else past.last
        if blocks:
            table = self._tables.get(kernel)
            if table is None:
                table = self._tables[kernel] = BlockTable(*self._shape)
            self._ends[kernel, past.last] = (blocks[0], last)
            for block, following in pairwise(blocks):
                table.record(block, following)
        return _Link(kernel, before, blocks, last)

    def _extend(self) -> None:
        """Extend the chain from the last kernel that is predicted, or the one that starts."""
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
                self.lost(block)

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

    def _drop(self) -> None:
        while self._chain:
            self._forget(self._chain.popleft())

    def _forget(self, link: _Link) -> None:
        for block in link.blocks:
            self._predicted[block] -= 1
            if not self._predicted[block]:
                del self._predicted[block]
                self.found(block)
