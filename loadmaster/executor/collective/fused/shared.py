"""Collectives on memory that all ranks share: nothing is staged, every rank reads and writes where the data is.

The owner of a piece does all that is done with it. In an AllReduce each rank owns one piece of the buffer: it reads
that piece of every rank, adds up, and writes the sum to every rank. In a ReduceScatter it reads and keeps the sum; in
an AllGather and an AllToAll it writes its pieces to where they belong.

A rank touches nobody's memory before that rank has begun the call, so what was there is done with; and a rank ends when
all have said that they are done, so what comes next may use the buffer. Each lane says and waits for both by itself.
Sums are added in the order of ranks, as everywhere: the bits are those of other forms that add up in one place.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.executor.collective.fused.kernel import THREADS
from loadmaster.executor.collective.fused.operations import VECTOR_BYTES, Cut, Operation, Place, Transfer
from loadmaster.executor.collective.fused.table import Table, encoded
from loadmaster.models.collective.problem import Collective

SHARED: tuple[Collective, ...] = ("allreduce", "allgather", "reduce_scatter", "alltoall")
_BEGUN, _DONE = 0, 1
_FLAG_BYTES = 8


def shared_is_input(collective: Collective) -> bool:
    """Which buffer has to be shared: a ReduceScatter's input, else the output."""
    return collective == "reduce_scatter"


def shared_table(collective: Collective, rank_count: int, size_bytes: int, blocks: int, flags_bytes: int) -> Table:
    """The launch of a call.

    Args:
        collective: one of ``SHARED``; an AllReduce is in place.
        size_bytes: of the largest buffer of a rank; of all but an AllReduce, a multiple of the number of ranks.
        blocks: at most.
        flags_bytes: room for flags, of which a block takes 16 bytes for each of its peers.
    """
    ranks = range(rank_count)
    cut = Cut(size_bytes, size_bytes, rank_count) if collective == "allreduce" else None
    each = size_bytes // rank_count if cut is None else cut.part_bytes
    room = flags_bytes // (_FLAG_BYTES * 2 * (rank_count - 1))
    lanes = max(1, min(blocks, room, -(-each // (THREADS * VECTOR_BYTES))))

    def word(kind: int, source: int, target: int) -> Transfer:
        number = kind * (rank_count - 1) + (source - (source > target))
        return Transfer(kind, source, source, target, None, number)

    def words(kind: int, rank: int, *, to: bool) -> tuple[Transfer, ...]:
        others = (other for other in ranks if other != rank)
        return tuple(word(kind, rank, other) if to else word(kind, other, rank) for other in others)

    def moves(rank: int) -> list[Operation]:
        """What the rank does between the words."""
        mine = rank * each
        if collective == "allreduce":
            assert cut is not None
            sources, targets = (tuple(Place(of, other, mine) for other in ranks) for of in ("input", "output"))
            return [Operation(rank, 0, cut.size_bytes(rank), sources, targets)]
        if collective == "reduce_scatter":
            sources = tuple(Place("input", other, mine) for other in ranks)
            return [Operation(rank, 0, each, sources, (Place("output", rank, 0),))]
        if collective == "allgather":
            targets = tuple(Place("output", other, mine) for other in ranks)
            return [Operation(rank, 0, each, (Place("input", rank, 0),), targets)]
        # The next rank first, so that no port is asked for twice at once.
        order = [(rank + step) % rank_count for step in ranks]
        return [
            Operation(rank, 0, each, (Place("input", rank, other * each),), (Place("output", other, mine),))
            for other in order
        ]

    def stream(rank: int) -> tuple[Operation, ...]:
        begins = Operation(rank, 0, 0, (), (), (), words(_BEGUN, rank, to=True))
        work = moves(rank)
        work[0] = replace(work[0], waits=words(_BEGUN, rank, to=False))
        work[-1] = replace(work[-1], sends=words(_DONE, rank, to=True))
        return (begins, *work, Operation(rank, 0, 0, (), (), words(_DONE, rank, to=False)))

    return encoded(tuple((stream(rank),) for rank in ranks), "simple", lanes, 1, THREADS)
