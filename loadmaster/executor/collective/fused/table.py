"""Instruction tables: the operations of a fused collective as words that the kernel interprets.

**Streams and lanes.** Every rank has streams, each a list of operations in the global order, and every stream runs as
``lanes`` blocks (the instances of TACCL, section 5.6.2). Lane i moves slice i of every chunk and waits only for lane i
of others, so no block ever waits for another of its own rank because of slices. ``rounds`` cut slices further: a
stream goes through its operations once a round, and streams of one rank overlap in different rounds. What ends at its
rank shares streams with what begins there, and lags a round behind it, or two where chunks are passed on: while a round
is on its way, its block sends the next. Lane i of n ends its rounds by i/n of one earlier than lane 0 does (its first
round is shorter by that, its last one longer), so that not all lanes stand still at their fences at once. The slices of
all pieces of one length are the same.

**Protocols.** ``simple``: vectors of 16 bytes, then one flag per transfer and lane, released after them and acquired
before the slot is read. ``packed``: every 8 bytes travel in one store of 16 with the number of the call twice, so that
they carry their own flag: no fence and no second trip, at half the bandwidth. Packed slots have a region of their own,
where nothing but packed words is ever written: old words there are recognised by their old number.

**No deadlock.** All blocks of a rank are resident at once. Take the first operation in the order (round and lag, global
order) that has not ended: all that it waits for comes before it, and so does all before it in its stream.

**Numbers of calls.** Flags hold a number of 64 bits that grows with every call by its rounds; it lives in device memory
and the kernel itself advances it, so that a replayed CUDA graph goes on counting. Waiting is for at least the number.

**No overwriting.** Calls alternate between two halves (parities) of flags and slots. Rank A writes to B's half p in
call n + 2 only after its own call n + 1 ended. In every call, A's operations depend on something that B did in the same
call (through data or, where the algorithm does not give that, through a notice: B tells A at its start, A hears it at
its end). So B had begun call n + 1, hence ended call n (one stream of device work), which was the last to read half p.
`notices_of` adds what is missing, for every ordered pair of ranks.

**In place.** Output may be input for AllReduce, Reduce and Broadcast. A block overwrites input of its rank only after
it was read: a final value of form ``direct`` depends on what this rank gave to it, slice by slice; a sum of form
``gather`` stands in the stream of the operation that sends the same chunk, with the same slices, and comes after it.

Words of an operation (64 bits each): bytes; counts (sources, targets << 8, waits << 16, signals << 24, when << 32, lag
<< 34); sources and targets as place << 56 | rank << 48 | offset (input or output of another rank: it is shared, see
:mod:`loadmaster.executor.collective.fused.shared`); waits as flag; signals as rank << 32 | flag. A flag is the number
of the first lane's; ``when`` is 0 (always), 1 (lane 0, first round) or 2 (lane 0, last round).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.executor.collective.fused.operations import VECTOR_BYTES, BufferPlace, Operation

Protocol = Literal["simple", "packed"]
Streams = tuple[tuple[tuple[Operation, ...], ...], ...]
"""Per rank and stream, its operations."""

# What the kernel's own arrays hold.
MOST_RANKS = 32
MOST_STREAMS = 64
_PLACES = {"input": 0, "output": 1, "arena": 2}
_MOST_OPERANDS = 255
_ALWAYS, _AT_START, _AT_END = 0, 1, 2
_WHEN_BITS = 2


@dataclass(frozen=True)
class Awaited:
    """A chunk of a peer's message that a block waits for, or (None) a peer's word that it began the call."""

    peer: int
    message: int | None
    chunk: int | None


@dataclass(frozen=True)
class Table:
    """A collective of one size, ready for the kernel of every rank.

    Attributes:
        words: per rank; begins: per rank and stream, the first word, and the end.
        arena_bytes: of slots, of the rank that has most, as the protocol packs them.
        flag_count: of the rank that has most.
    """

    protocol: Protocol
    lanes: int
    rounds: int
    threads: int
    streams: Streams
    words: tuple[NDArray[np.int64], ...]
    begins: tuple[tuple[int, ...], ...]
    arena_bytes: int
    flag_count: int

    @property
    def rank_count(self) -> int:
        return len(self.streams)

    def describe(self, rank: int, stream: int, word: int) -> str:
        """Describe the operation at a word of a stream."""
        at = self.begins[rank][stream]
        for operation in self.streams[rank][stream]:
            if at >= word:
                return _describe(operation)
            at += _length(operation, self.protocol)
        return "the end of its stream"

    def awaited(self, rank: int, stream: int, word: int, operand: int) -> Awaited:
        """Find from whom an operation gets an operand: a wait by number (simple), a source by number (packed)."""
        at = self.begins[rank][stream]
        for operation in self.streams[rank][stream]:
            if at >= word:
                if operation.hears:
                    return Awaited(operation.hears[operand], None, None)
                arriving = {t.slot: t for t in operation.waits}
                of_slot = self.protocol == "packed"
                found = arriving[operation.sources[operand]] if of_slot else operation.waits[operand]
                return Awaited(found.source, found.message, found.chunk)
            at += _length(operation, self.protocol)
        raise ValueError(f"Rank {rank} has no operation at word {word} of stream {stream}.")


def table_of(
    operations: Sequence[Operation],
    rank_count: int,
    protocol: Protocol,
    lanes: int,
    rounds: int,
    widths: Sequence[int],
    *,
    threads: int = 512,
) -> Table:
    """Build the table of a collective, for all ranks. It does the same with any number of ``threads`` in a block.
    ``widths`` are streams of a rank: of what begins or ends there, and of what passes on. InputError: more ranks,
    streams or operands than the kernel takes."""
    if rank_count > MOST_RANKS:
        raise InputError("ranks", rank_count, f"are more than {MOST_RANKS}", "Use the point-to-point executor.")
    flags = [0] * rank_count
    for t in (t for o in operations for t in o.sends):
        flags[t.target] = max(flags[t.target], t.number + 1)
    dealt = _streams(operations, rank_count, widths)
    streams, notices = _with_notices(dealt, operations, rank_count, flags)
    lag = 2 if any(operation.stage == 1 for operation in operations) else 1
    return encoded(streams, protocol, lanes, rounds, threads, lag, notices)


def encoded(
    streams: Streams,
    protocol: Protocol,
    lanes: int,
    rounds: int,
    threads: int,
    lag: int = 0,
    notices: Mapping[tuple[int, int], int] = MappingProxyType({}),
) -> Table:
    """Encode the streams of all ranks as a table; ``notices``: the flag for each (teller, hearer). What ends at a rank
    lags by ``lag`` rounds."""
    encode = _Encoder(protocol, lanes, lag, notices)
    words, begins = zip(*(encode.rank(of_rank) for of_rank in streams), strict=True)
    sends = [(o, t) for of_rank in streams for stream in of_rank for o in stream for t in o.sends]
    slots = [t.slot.offset_bytes + -(-o.size_bytes // VECTOR_BYTES) * VECTOR_BYTES for o, t in sends if t.slot]
    return Table(
        protocol,
        lanes,
        rounds,
        threads,
        streams,
        tuple(words),
        tuple(begins),
        max(slots, default=0) * (2 if protocol == "packed" else 1),
        (max((*(t.number for _, t in sends), *notices.values()), default=-1) + 1) * lanes,
    )


def notices_of(operations: Sequence[Operation], rank_count: int) -> dict[int, tuple[int, ...]]:
    """Find, per rank, the ranks on whose start nothing of it depends: they have to tell it that they began."""
    behind: dict[tuple[int, int], set[int]] = {}
    heard: list[set[int]] = [{rank} for rank in range(rank_count)]
    for operation in operations:
        found = {operation.rank}.union(*(behind[t.target, t.number] for t in operation.waits))
        heard[operation.rank] |= found
        for transfer in operation.sends:
            behind[transfer.target, transfer.number] = found
    return {rank: tuple(sorted(set(range(rank_count)) - heard[rank])) for rank in range(rank_count)}


def _streams(operations: Sequence[Operation], rank_count: int, widths: Sequence[int]) -> list[list[list[Operation]]]:
    """Deal operations out to streams, in order; what ends at a rank that sends the same chunk goes behind that."""
    dealt: list[list[list[list[Operation]]]] = [
        [[[] for _ in range(width)] for width in widths] for _ in range(rank_count)
    ]
    counts: Counter[tuple[int, int]] = Counter()
    sends: dict[tuple[int, int | None], list[Operation]] = {}
    for operation in operations:
        rank, stage = operation.rank, operation.stage
        among = dealt[rank][stage % 2]
        stream = among[counts[rank, stage] % len(among)]
        counts[rank, stage] += 1
        if stage == 0:
            sends[rank, operation.chunk] = stream
        elif stage == 2:
            stream = sends.get((rank, operation.chunk), stream)
        stream.append(operation)
    return [[stream for kind in of_rank for stream in kind if stream] for of_rank in dealt]


def _with_notices(
    streams: list[list[list[Operation]]], operations: Sequence[Operation], rank_count: int, flags: Sequence[int]
) -> tuple[Streams, dict[tuple[int, int], int]]:
    """Add notices first and last to a rank's first stream; return the streams, and flags by (teller, hearer)."""
    missing = notices_of(operations, rank_count)
    numbers = {
        (teller, hearer): flags[hearer] + number
        for hearer, tellers in missing.items()
        for number, teller in enumerate(tellers)
    }
    last = max((o.position for o in operations), default=0.0) + 1
    found = []
    for rank in range(rank_count):
        of_rank = [list(stream) for stream in streams[rank]] or [[]]
        tells = tuple(hearer for hearer in range(rank_count) if rank in missing[hearer])
        if tells:
            of_rank[0].insert(0, Operation(rank, -1.0, 0, (), (), tells=tells))
        if missing[rank]:
            of_rank[0].append(Operation(rank, last, 0, (), (), hears=missing[rank]))
        found.append(tuple(tuple(stream) for stream in of_rank))
    return tuple(found), numbers


class _Encoder:
    def __init__(self, protocol: Protocol, lanes: int, lag: int, notices: Mapping[tuple[int, int], int]) -> None:
        self.packed, self.lanes, self.lag, self.notices = protocol == "packed", lanes, lag, notices

    def rank(self, streams: Sequence[Sequence[Operation]]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
        if len(streams) > MOST_STREAMS:
            raise InputError("streams", len(streams), f"are more than {MOST_STREAMS}", "Ask for fewer blocks.")
        words: list[int] = []
        begins = [0]
        for stream in streams:
            for operation in stream:
                words += self._operation(operation)
            begins.append(len(words))
        return np.array(words, dtype=np.int64), tuple(begins)

    def _operation(self, operation: Operation) -> list[int]:
        when = _AT_START if operation.tells else _AT_END if operation.hears else _ALWAYS
        sources = [self._place(place) for place in operation.sources]
        targets = [self._place(place) for place in operation.targets]
        waits = [self.notices[teller, operation.rank] * self.lanes for teller in operation.hears]
        signals = [self._signal(hearer, self.notices[operation.rank, hearer]) for hearer in operation.tells]
        if not self.packed:
            waits += [transfer.number * self.lanes for transfer in operation.waits]
            signals += [self._signal(transfer.target, transfer.number) for transfer in operation.sends]
        counts = [len(sources), len(targets), len(waits), len(signals)]
        if max(counts) > _MOST_OPERANDS:
            raise InputError("operands", max(counts), f"are more than {_MOST_OPERANDS}", "Plan with fewer parts.")
        lag = self.lag if operation.stage == 2 and operation.targets else 0
        packed = sum(count << (8 * place) for place, count in enumerate(counts)) | (when | lag << _WHEN_BITS) << 32
        return [operation.size_bytes, packed, *sources, *targets, *waits, *signals]

    def _place(self, place: BufferPlace) -> int:
        factor = 2 if self.packed and place.buffer == "arena" else 1
        return _PLACES[place.buffer] << 56 | place.rank << 48 | place.offset_bytes * factor

    def _signal(self, rank: int, number: int) -> int:
        return rank << 32 | number * self.lanes


def _length(operation: Operation, protocol: Protocol) -> int:
    flags = len(operation.tells) + len(operation.hears)
    if protocol == "simple":
        flags += len(operation.waits) + len(operation.sends)
    return 2 + len(operation.sources) + len(operation.targets) + flags


def _describe(operation: Operation) -> str:
    if operation.tells or operation.hears:
        return f"notice to {list(operation.tells)}" if operation.tells else f"notice from {list(operation.hears)}"
    if not operation.size_bytes:
        return f"words of ranks {[t.source for t in operation.waits]}"
    what = "sum" if len(operation.sources) > 1 else "copy"
    to = [f"rank {t.target} (message {t.message})" for t in operation.sends]
    if any(place.buffer == "output" for place in operation.targets):
        to.append("the output")
    return f"{what} of chunk {operation.chunk}, {operation.size_bytes} bytes, to {', '.join(to)}"
