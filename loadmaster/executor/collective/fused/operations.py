"""Operations of each rank in a fused collective: those of an algorithm, in one global order.

An operation reads one or more pieces of one length, adds them up in the order of ranks if there are several, and writes
the result to slots in the arenas of peers, and the rank's own output. It may begin once every transfer that it waits
for has arrived. A transfer is one chunk of one message, with a slot of its own at its target, so that nothing is ever
added up in memory: children write to their slots, and the parent adds them up, always in the same order. Results are
the same bits in every run; and where a sum is made in one place, the same bits whether its parts came one by one (form
``direct``) or with all inputs (form ``gather``).

Messages of one chunk that leave a rank with the same contributions are one operation with several targets: the sum is
made once. It stands where the first of them stood, so an operation waits only for operations before it: any split of a
rank's operations into streams that keeps the order ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.models.collective.collectives import pieces
from loadmaster.models.collective.lowering import Lowered
from loadmaster.models.collective.plan import Algorithm
from loadmaster.models.collective.problem import CollectiveProblem

Buffer = Literal["input", "output", "arena"]
# Slots begin at multiples of this, and chunks are cut at multiples of it: the widest access of the kernel.
VECTOR_BYTES = 16
_FIXED = ("alltoallv", "custom")


@dataclass(frozen=True)
class BufferPlace:
    """Place in a buffer of a rank, from ``offset_bytes`` on."""

    buffer: Buffer
    rank: int
    offset_bytes: int


@dataclass(frozen=True)
class Transfer:
    """A chunk on its way: its slot in the target's arena (None: a word alone), and its number among the target's."""

    message: int
    chunk: int
    source: int
    target: int
    slot: BufferPlace | None
    number: int


@dataclass(frozen=True)
class Operation:
    """One step of one rank in a fused collective.

    Attributes:
        position: place in the global order.
        size_bytes: of each piece; 0: the operation only tells or waits.
        sources: added up, if several, in this order.
        waits: transfers to this rank that must be there before.
        sends: transfers that it makes; their slots are among the ``targets``.
        chunk: what it is about; of a sum of several inputs, the one that this rank gave.
        tells: ranks that it tells, at the start of the call, that this rank has begun it.
        hears: ranks whose such word it waits for, at the end (see :mod:`loadmaster.executor.collective.fused.table`).
    """

    rank: int
    position: float
    size_bytes: int
    sources: tuple[BufferPlace, ...]
    targets: tuple[BufferPlace, ...]
    waits: tuple[Transfer, ...] = ()
    sends: tuple[Transfer, ...] = ()
    chunk: int | None = None
    tells: tuple[int, ...] = ()
    hears: tuple[int, ...] = ()

    @property
    def stage(self) -> int:
        """Stage: 0 begins at once and sends; 1 waits and sends; 2 only writes the rank's own output."""
        return 2 if not self.sends else min(len(self.waits), 1)


@dataclass(frozen=True)
class Cut:
    """Cut of a call's buffers into the chunks of a plan, whatever size it was planned for. A buffer is blocks of
    ``block_bytes``, ``stride_bytes`` apart, each cut into ``parts`` at multiples of 16 bytes; parts behind the end of a
    small block are empty."""

    block_bytes: int
    stride_bytes: int
    parts: int

    @property
    def part_bytes(self) -> int:
        """Bytes of all parts but the last ones."""
        return -(-self.block_bytes // (self.parts * VECTOR_BYTES)) * VECTOR_BYTES

    def size_bytes(self, part: int) -> int:
        return max(0, min(self.part_bytes, self.block_bytes - part * self.part_bytes))

    def offset_bytes(self, index: int) -> int:
        """Offset of the part that is number ``index`` over all blocks."""
        block, part = divmod(index, self.parts)
        return block * self.stride_bytes + part * self.part_bytes


def block_count(problem: CollectiveProblem) -> int:
    """Blocks of the largest buffer: what a size has to divide into."""
    return 1 if problem.collective in ("allreduce", *_FIXED) else pieces(problem)


def cut_of(
    problem: CollectiveProblem, algorithm: Algorithm, block_bytes: int, stride_bytes: int | None = None
) -> Cut | None:
    """The cut for blocks of that size; None where a plan holds for its own sizes only (``alltoallv``, ``custom``)."""
    if problem.collective in _FIXED:
        return None
    whole = problem.collective == "allreduce" and algorithm.form == "direct"
    parts = algorithm.chunk_count * (problem.topology.rank_count if whole else 1)
    return Cut(block_bytes, block_bytes if stride_bytes is None else stride_bytes, parts)


class Buffers:
    """Sizes and places of chunks in the buffers of a call."""

    def __init__(self, lowered: Lowered, cut: Cut | None) -> None:
        self.layout, self.cut = lowered.buffers, cut
        self._planned_bytes = lowered.buffers.chunks[0].size_bytes
        if cut is not None and self._planned_bytes < 1:
            raise InputError("algorithm.size_bytes", 0, "is nothing", "Plan for at least one byte a chunk.")

    def size_bytes(self, chunk: int) -> int:
        if self.cut is None:
            return self.layout.chunks[chunk].size_bytes
        source = self.layout.chunks[chunk].sources[0]
        return self.cut.size_bytes(self.layout.inputs[source][chunk] // self._planned_bytes % self.cut.parts)

    def input(self, rank: int, chunk: int) -> BufferPlace:
        return BufferPlace("input", rank, self._offset(self.layout.inputs[rank][chunk]))

    def output(self, rank: int, chunk: int) -> BufferPlace:
        return BufferPlace("output", rank, self._offset(self.layout.outputs[rank][chunk]))

    def sum(self, rank: int, offset_bytes: int) -> BufferPlace:
        return BufferPlace("output", rank, self._offset(offset_bytes))

    def total_bytes(self, rank: int) -> tuple[int, int]:
        """Bytes of a rank's input and output, with what is between the blocks of this call."""
        planned = (self.layout.input_bytes[rank], self.layout.output_bytes[rank])
        if self.cut is None:
            return planned
        block_bytes = self.cut.parts * self._planned_bytes
        return planned[0] // block_bytes * self.cut.stride_bytes, planned[1] // block_bytes * self.cut.stride_bytes

    def _offset(self, planned: int) -> int:
        return planned if self.cut is None else self.cut.offset_bytes(planned // self._planned_bytes)


def operations_of(lowered: Lowered, cut: Cut | None) -> tuple[Operation, ...]:
    """All operations of all ranks, in the global order."""
    return _Builder(lowered, Buffers(lowered, cut)).build()


class _Builder:
    """Follows the messages and keeps, per rank and chunk, what has arrived."""

    def __init__(self, lowered: Lowered, buffers: Buffers) -> None:
        self.lowered, self.buffers = lowered, buffers
        self.parts: dict[tuple[int, int], list[Transfer]] = {}
        self.copies: dict[tuple[int, int], Transfer] = {}
        self.made: dict[tuple[int, int, tuple[int, ...]], Operation] = {}
        self.arena_bytes = [0] * lowered.rank_count
        self.arrived = [0] * lowered.rank_count

    def build(self) -> tuple[Operation, ...]:
        for message in self.lowered.messages:
            for chunk in message.chunks:
                self._send(message.index, message.source, message.target, chunk, message.combines)
        for rank in range(self.lowered.rank_count):
            for chunk in self.lowered.buffers.outputs[rank]:
                self._keep(rank, chunk)
            for total in self.lowered.buffers.sums[rank]:
                self._add_up(rank, total.offset, total.chunks)
        return tuple(sorted(self.made.values(), key=lambda o: (o.position, o.rank)))

    def _send(self, message: int, source: int, target: int, chunk: int, combines: bool) -> None:
        size = self.buffers.size_bytes(chunk)
        whole = not self.lowered.buffers.chunks[chunk].reduces
        if not size or (target, chunk) in self.copies or (whole and chunk in self.lowered.buffers.inputs[target]):
            return
        operation = self._value(source, chunk, message)
        slot = BufferPlace("arena", target, self.arena_bytes[target])
        transfer = Transfer(message, chunk, source, target, slot, self.arrived[target])
        self.arena_bytes[target] += -(-size // VECTOR_BYTES) * VECTOR_BYTES
        self.arrived[target] += 1
        self._put(replace(operation, targets=(*operation.targets, slot), sends=(*operation.sends, transfer)))
        if combines:
            self.parts.setdefault((target, chunk), []).append(transfer)
        else:
            self.copies[target, chunk] = transfer

    def _keep(self, rank: int, chunk: int) -> None:
        """Write what a target has of a chunk at the end to its output."""
        if self.buffers.size_bytes(chunk):
            operation = self._value(rank, chunk, None)
            self._put(replace(operation, targets=(*operation.targets, self.buffers.output(rank, chunk))))

    def _add_up(self, rank: int, offset_bytes: int, chunks: Sequence[int]) -> None:
        size = self.buffers.size_bytes(chunks[0])
        if not size:
            return
        values = [self._value(rank, chunk, None) for chunk in chunks]
        sources = tuple(place for value in values for place in value.sources)
        waits = tuple(transfer for value in values for transfer in value.waits)
        target = self.buffers.sum(rank, offset_bytes)
        own = next((c for c in chunks if c in self.lowered.buffers.inputs[rank]), chunks[0])
        # In place, it overwrites what the rank sends: it comes after that. Nothing waits for it.
        sent = self.made.get((rank, own, ()))
        position = max(*(t.message for t in waits), sent.position if sent else -1, -1) + 0.5
        self.made[rank, -1 - offset_bytes, ()] = Operation(rank, position, size, sources, (target,), waits, (), own)

    def _value(self, rank: int, chunk: int, message: int | None) -> Operation:
        """The operation, new or there already, that reads what a rank has of a chunk by now."""
        copy = self.copies.get((rank, chunk))
        waits = (copy,) if copy else tuple(self.parts.get((rank, chunk), ()))
        known = self.made.get((rank, chunk, tuple(t.message for t in waits)))
        if known:
            return known
        contributions = [(t.source, t.message, t.slot) for t in waits if t.slot]
        if not copy and chunk in self.lowered.buffers.inputs[rank]:
            contributions.append((rank, -1, self.buffers.input(rank, chunk)))
        sources = tuple(place for _, _, place in sorted(contributions, key=lambda c: c[:2]))
        position = max((t.message for t in waits), default=-1) + 0.5 if message is None else float(message)
        return Operation(rank, position, self.buffers.size_bytes(chunk), sources, (), waits, (), chunk)

    def _put(self, operation: Operation) -> None:
        assert operation.chunk is not None
        key = (operation.rank, operation.chunk, tuple(t.message for t in operation.waits))
        self.made[key] = operation
