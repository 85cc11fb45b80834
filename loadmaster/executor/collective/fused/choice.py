"""Spread of a collective of one size over a GPU: protocol, lanes, rounds, and streams.

Figures behind the limits: a fence and a flag cost a level of messages about two microseconds, in which a port carries
about 700 kB; packed words save them and cost every byte twice. A block of 512 threads has 8 kB in flight with one
vector a thread. Blocks are few enough to leave room on the GPU for kernels of others that wait for one another. Packed
blocks are small and many: a block's stores leave its multiprocessor one after another, and what is small waits for
them. A round ends in a fence, for which a block stands still about as long as its share of the port takes for 40 kB;
pieces are several times that (a few of them are slower than one), and no more rounds are worth it than hide what comes
after the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.executor.collective.fused.kernel import THREADS, WARP
from loadmaster.executor.collective.fused.operations import VECTOR_BYTES, Operation
from loadmaster.executor.collective.fused.table import MOST_STREAMS, Protocol

# Fewer pieces of a lane are not worth their fences.
FEWEST_PIECES = 4


@dataclass(frozen=True)
class Limits:
    """Limits of one call that a user may tune; the same on every rank.

    Attributes:
        blocks: of one call, at most; all of them are resident at once. Calls of many MiB are fastest with 128, nearly
            all of a GPU; with 64, half of it is left to other kernels.
        packed_bytes: calls in which no rank sends more are packed.
        packed_threads: of a packed block, at least; more where lanes are at their limit.
        piece_bytes: of a chunk, lane and round, at least, where a call is cut into rounds.
        rounds: at most.
    """

    blocks: int = 64
    packed_bytes: int = 512 << 10
    packed_threads: int = 128
    piece_bytes: int = 128 << 10
    rounds: int = 16


@dataclass(frozen=True)
class Choice:
    """Protocol, lanes, rounds, widths and threads for :func:`loadmaster.executor.collective.fused.table.table_of`."""

    protocol: Protocol
    lanes: int
    rounds: int
    widths: tuple[int, int]
    threads: int


def choose(operations: Sequence[Operation], limits: Limits) -> Choice:
    """Choose how the operations of all ranks are spread over blocks."""
    sent: Counter[int] = Counter()
    for operation in operations:
        sent[operation.rank] += operation.size_bytes * len(operation.sends)
    protocol: Protocol = "packed" if max(sent.values(), default=0) <= limits.packed_bytes else "simple"
    counts = Counter((operation.rank, operation.stage) for operation in operations)
    most = [max((count for (_, of), count in counts.items() if of == stage), default=0) for stage in range(3)]
    kinds = max(most[0], most[2]), most[1]
    largest = max((o.size_bytes for o in operations), default=0)
    if protocol == "packed":
        widths = _at_most(kinds, min(limits.blocks, MOST_STREAMS))
        units = -(-largest // (VECTOR_BYTES // 2))
        lanes = _between(1, -(-units // limits.packed_threads), limits.blocks // max(1, sum(widths)))
        threads = _between(limits.packed_threads, -(-units // (lanes * WARP)) * WARP, THREADS)
        return Choice("packed", lanes, 1, widths, threads)
    lanes = _between(1, -(-largest // (THREADS * VECTOR_BYTES)), limits.blocks // sum(count > 0 for count in kinds))
    # One more than pieces: the first and the last round of a lane share one.
    pieces = largest // (lanes * limits.piece_bytes)
    rounds = _between(1, pieces + 1 if pieces >= FEWEST_PIECES else 1, limits.rounds)
    return Choice("simple", lanes, rounds, _at_most(kinds, min(limits.blocks // lanes, MOST_STREAMS)), THREADS)


def _at_most(counts: Sequence[int], total: int) -> tuple[int, int]:
    """A stream for every operation of a kind, or as many as there may be; at least one for a kind that has any."""
    widths = list(counts)
    while sum(widths) > total and max(widths) > 1:
        widest = widths.index(max(widths))
        widths[widest] = -(-widths[widest] // 2)
    return widths[0], widths[1]


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
