"""Collectives on memory that all ranks share: nothing is staged, every rank reads and writes where the data is.

The owner of a piece does all that is done with it. In an AllReduce each rank owns one piece of the buffer: it reads
that piece of every rank, adds up, and writes the sum to every rank. In a ReduceScatter it reads and keeps the sum; in
an AllGather and an AllToAll it writes its pieces to where they belong.

A rank touches nobody's memory before that rank has begun the call, so what was there is done with; and it ends when all
have said that they are done, so what comes next may use the buffer. Each lane says and waits for both by itself. Sums
are added in the order of ranks: the bits are those of other forms that add up in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.executor.collective.fused.kernel import THREADS
from loadmaster.executor.collective.fused.operations import VECTOR_BYTES, BufferPlace, Cut, Operation, Transfer
from loadmaster.executor.collective.fused.table import Table, encoded
from loadmaster.models.collective.problem import Collective

SHARED: tuple[Collective, ...] = ("allreduce", "allgather", "reduce_scatter", "alltoall")
_BEGUN, _DONE = 0, 1
# Streams for what an AllToAll gives to others: with two ranks three quarters of all blocks.
_STREAMS = 3
_FLAG_BYTES = 8


def shared_is_input(collective: Collective) -> bool:
    """Return whether the input has to be shared, as for a ReduceScatter, and not the output."""
    return collective == "reduce_scatter"


def shared_table(collective: Collective, rank_count: int, size_bytes: int, blocks: int, flags_bytes: int) -> Table:
    """Build the table of a call on shared memory, of a collective of ``SHARED``; an AllReduce is in place.
    ``size_bytes`` is that of the largest buffer of a rank; but for an AllReduce, a multiple of the number of ranks.
    There are at most ``blocks`` blocks; each takes 16 of the ``flags_bytes`` for each peer it works with."""
    ranks = range(rank_count)
    exchanges = collective == "alltoall"
    cut = Cut(size_bytes, size_bytes, rank_count) if collective == "allreduce" else None
    each = size_bytes // rank_count if cut is None else cut.part_bytes
    shares = max(1, _STREAMS // (rank_count - 1)) if exchanges else 1  # of what one rank gives another
    share = Cut(each, each, shares)
    streams = min(blocks, shares * (rank_count - 1) + 1) if exchanges else 1
    room = flags_bytes // (_FLAG_BYTES * 2 * shares * (rank_count - 1))
    lanes = max(1, min(blocks // streams, room, -(-share.part_bytes // (THREADS * VECTOR_BYTES))))

    def whole(rank: int) -> Operation:
        """Operation of a rank in a collective that is not an AllToAll."""
        mine = rank * each
        if cut is not None:
            sources, targets = (tuple(BufferPlace(of, other, mine) for other in ranks) for of in ("input", "output"))
            return Operation(rank, 0, cut.size_bytes(rank), sources, targets)
        if collective == "reduce_scatter":
            sources = tuple(BufferPlace("input", other, mine) for other in ranks)
            return Operation(rank, 0, each, sources, (BufferPlace("output", rank, 0),))
        targets = tuple(BufferPlace("output", other, mine) for other in ranks)
        return Operation(rank, 0, each, (BufferPlace("input", rank, 0),), targets)

    def given(rank: int, other: int, part: int) -> Operation:
        """A share of what a rank gives another in an AllToAll; what it gives itself is one share."""
        at, size = part * share.part_bytes, each if other == rank else share.size_bytes(part)
        source, target = BufferPlace("input", rank, other * each + at), BufferPlace("output", other, rank * each + at)
        return Operation(rank, 0, size, (source,), (target,))

    def word(kind: int, source: int, target: int, part: int) -> Transfer:
        number = (kind * shares + part) * (rank_count - 1) + (source - (source > target))
        return Transfer(kind, source, source, target, None, number)

    def between(work: Sequence[Operation], peers: Sequence[tuple[int, int]]) -> tuple[Operation, ...]:
        """Put a stream's work between the words of its peers: each is a rank, and a share of its memory."""
        rank = work[0].rank
        told, said = (tuple(word(kind, rank, *peer) for peer in peers) for kind in (_BEGUN, _DONE))
        begun, done = (tuple(word(kind, peer, rank, part) for peer, part in peers) for kind in (_BEGUN, _DONE))
        begins, ends = Operation(rank, 0, 0, (), (), sends=told), Operation(rank, 0, 0, (), (), waits=done)
        *first, last = (replace(work[0], waits=begun), *work[1:])
        return (begins, *first, replace(last, sends=said), ends)

    def of_rank(rank: int) -> tuple[tuple[Operation, ...], ...]:
        # The next rank first, so that no port is asked for twice at once.
        peers = [((rank + step) % rank_count, part) for part in range(shares) for step in ranks[1:]]
        if not exchanges:
            return (between([whole(rank)], peers),)
        dealt = [[*peers, (rank, 0)][i::streams] for i in range(streams)]
        return tuple(
            between([given(rank, *one) for one in stream], [one for one in stream if one[0] != rank])
            for stream in dealt
        )

    return encoded(tuple(of_rank(rank) for rank in ranks), "simple", lanes, 1, THREADS)
