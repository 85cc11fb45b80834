"""An algorithm as an MSCCL++ execution plan (JSON), for the executor of MSCCL++.

A message is a put into the receiver's buffer and a signal; the receiver waits, adds where it has to, and releases one
semaphore for every step of its rank that goes on from there. Memory channels join GPUs of a node, port channels others.
Every directed link has a channel of its own, so signals cannot be mixed up. ``nop`` is a barrier of the threads of a
block: without it one thread signals before the others have written.

The executor's arrays are short; a plan that passes them would be read past their ends, so the limits below are checked
here: threadblocks of more operations are dealt out over several, and what is still too much is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from loadmaster.errors import InputError
from loadmaster.models.collective.exports.streams import (
    Move,
    Point,
    Programs,
    Step,
    Stream,
    StreamPlace,
    expect_even,
    fewest_blocks,
    fitted,
)
from loadmaster.models.collective.lowering import lower
from loadmaster.models.collective.plan import Algorithm, CollectivePlan
from loadmaster.models.collective.problem import Collective, CollectiveProblem
from loadmaster.models.topologies.topology import Topology

OPERATIONS_PER_BLOCK = 64
CHANNELS_PER_OPERATION = 8
SEMAPHORES_PER_OPERATION = 16
# Buffers that one operation reads: two of its own, and one for every channel.
INPUTS_PER_OPERATION = 2 + CHANNELS_PER_OPERATION
# Blocks are resident at once: the multiprocessors of the smallest GPU of MSCCL++'s tests (A100).
BLOCKS = 108
ALIGNMENT_BYTES = 16
# Offsets in buffers are 32-bit.
LARGEST_BYTES = 2**32 - 1

_COLLECTIVES: Mapping[Collective, str] = {
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "allreduce": "allreduce",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
}

Document = dict[str, Any]


def mscclpp_files(problem: CollectiveProblem, plan: CollectivePlan, instances: int = 1) -> dict[str, str]:
    """File name -> JSON of each algorithm of the table, for the sizes it is the fastest of. Raises as
    :func:`mscclpp_plan`. An algorithm whose sizes all have chunks below the executor's alignment is left out: it could
    not run."""
    files = {}
    for n, algorithm in enumerate(plan.algorithms):
        ends = plan.algorithms[n + 1].from_bytes - 1 if n + 1 < len(plan.algorithms) else LARGEST_BYTES
        name = f"{problem.collective}-{problem.topology.rank_count}-{algorithm.size_bytes}"
        document = mscclpp_plan(
            problem, algorithm, instances=instances, min_bytes=algorithm.from_bytes, max_bytes=ends, name=name
        )
        if document["min_message_size"] <= ends:
            files[f"{name}.json"] = json.dumps(document) + "\n"
    return files


def mscclpp_plan(
    problem: CollectiveProblem,
    algorithm: Algorithm,
    *,
    name: str,
    instances: int = 1,
    min_bytes: int = 0,
    max_bytes: int = LARGEST_BYTES,
) -> Document:
    """Write one algorithm as an execution plan of MSCCL++. The executor runs it at every size from ``min_bytes`` to
    ``max_bytes`` that its chunks divide; the plan narrows that down to what the executor can hold. ``InputError``: it
    has no such collective, or one of its limits is passed."""
    if problem.collective not in _COLLECTIVES:
        known = ", ".join(_COLLECTIVES)
        raise InputError("collective", problem.collective, "is not known to MSCCL++", f"It knows {known}.")
    lowered = lower(problem, algorithm)
    expect_even(lowered, instances)
    # Before the work of building what is refused then.
    _expect_blocks(fewest_blocks(lowered, instances))
    unit_bytes = lowered.buffers.chunks[0].size_bytes // instances
    topology = problem.topology
    programs = fitted(
        lowered,
        algorithm.chunk_count,
        instances,
        most_units=sys.maxsize,
        staged=True,
        longest=OPERATIONS_PER_BLOCK,
        length=lambda made, stream: len(list(_operations(made, stream, topology, {}))),
    )
    # Ranks need the same number of units, even where only a root has input or output.
    units = [max(n) // unit_bytes for n in (lowered.buffers.input_bytes, lowered.buffers.output_bytes)]
    counted = max(units) if problem.collective == "allgather" else units[0]
    # What a call counts as its size is so many units, and none may be smaller than the alignment.
    min_bytes = max(min_bytes, ALIGNMENT_BYTES * counted)
    max_bytes = min(max_bytes, LARGEST_BYTES * counted // max(*units, *programs.scratch))
    if max_bytes < algorithm.size_bytes:
        why = f"needs buffers over {LARGEST_BYTES} bytes, which MSCCL++'s offsets cannot reach"
        raise InputError("plan", algorithm.size_bytes, why, "Export the algorithms of smaller sizes.")
    return {
        "name": name,
        "collective": _COLLECTIVES[problem.collective],
        "protocol": "Simple",
        "inplace": False,
        "reuse_resources": False,
        "gpus": [_gpu(programs, topology, rank, units[0], units[1]) for rank in range(topology.rank_count)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT_BYTES,
        "min_message_size": min_bytes,
        "max_message_size": max_bytes,
    }


def _expect_blocks(found: int) -> None:
    if found > BLOCKS:
        remedy = "Export fewer instances, or plan with fewer chunks or a sketch with fewer links."
        raise InputError("plan", found, f"takes more than {BLOCKS} threadblocks on a GPU", remedy)


def _gpu(programs: Programs, topology: Topology, rank: int, input_units: int, output_units: int) -> Document:
    streams = programs.of_rank(rank)
    _expect_blocks(len(streams))
    semaphores = _semaphores(programs, streams)
    channels = {kind: _channels(programs, topology, rank, kind) for kind in ("memory", "port")}
    # What this rank writes to: the buffers of the receivers.
    remote = sorted(
        {
            (stream.peer, buffer, _kind(topology, stream))
            for stream in streams
            if stream.role == "send"
            for buffer in _buffers_written(programs.streams[stream])
        }
    )
    blocks = []
    for number, stream in enumerate(streams):
        block: Document = {"id": number, "ops": list(_operations(programs, stream, topology, semaphores))}
        block["channels"], block["remote_buffer_refs"] = [], []
        if stream.role != "local":
            kind = _kind(topology, stream)
            mine = channels[kind].index((*stream.link, stream.instance, stream.lane))
            block["channels"].append({"channel_type": kind, "channel_ids": [mine]})
            if stream.role == "send":
                ids = [remote.index((stream.peer, b, kind)) for b in _buffers_written(programs.streams[stream])]
                block["remote_buffer_refs"].append({"access_channel_type": kind, "remote_buffer_ids": ids})
        blocks.append(block)
    return {
        "id": rank,
        "input_chunks": input_units,
        "output_chunks": output_units,
        "scratch_chunks": programs.scratch[rank],
        "threadblocks": blocks,
        "channels": [
            {"channel_type": kind, "connected_to": [b if a == rank else a for a, b, _, _ in ends]}
            for kind, ends in channels.items()
            if ends
        ],
        "remote_buffers": [{"rank": r, "type": b, "access_channel_types": [kind]} for r, b, kind in remote],
        "semaphores": [{"init_value": 0} for _ in semaphores],
    }


def _kind(topology: Topology, stream: Stream) -> str:
    return "memory" if topology.node_of[stream.rank] == topology.node_of[stream.peer] else "port"


def _channels(programs: Programs, topology: Topology, rank: int, kind: str) -> list[tuple[int, int, int, int]]:
    """List the rank's channels as (from, to, instance, lane), in the order that both ends of a pair share. The executor
    pairs the n-th channel that joins two ranks on one with the n-th on the other."""
    mine = (s for s in programs.of_rank(rank) if s.role != "local" and _kind(topology, s) == kind)
    return sorted((*s.link, s.instance, s.lane) for s in mine)


def _semaphores(programs: Programs, streams: Sequence[Stream]) -> dict[tuple[Point, Point], int]:
    """One semaphore for each pair of a step and one that waits for it; each goes up and down once in a run."""
    pairs = [
        (point, (stream, place))
        for stream in streams
        for place, step in enumerate(programs.streams[stream])
        for point in step.waits
    ]
    return {pair: number for number, pair in enumerate(pairs)}


def _buffers_written(steps: Sequence[Step]) -> list[str]:
    """The kinds of the receiver's buffers that a stream of sends writes to."""
    return sorted({(move.landing or move.target).buffer for step in steps for move in step.moves})


def _operations(
    programs: Programs, stream: Stream, topology: Topology, semaphores: Mapping[tuple[Point, Point], int]
) -> Iterator[Document]:
    """The operations of a threadblock. Without ``semaphores`` their numbers are left 0: the count is the same."""
    steps = programs.streams[stream]
    if stream.role == "local":
        for place, step in enumerate(steps):
            yield from _acquire((stream, place), step, semaphores)
            yield from _local(step)
        return
    kind = _kind(topology, stream)
    on = {"channel_type": kind, "channel_ids": [0]}
    if stream.role == "receive":
        # The buffers of this run may be written: the run before has ended here.
        yield {"name": "signal", **on}
        for place, step in enumerate(steps):
            yield {"name": "wait", **on}
            yield from _acquire((stream, place), step, semaphores)
            if not step.waits:
                yield {"name": "nop"}
            adds = [move for move in step.moves if move.operand is not None]
            for move in adds:
                assert move.operand is not None and move.landing is not None
                yield _reduce([move.operand, move.landing], move)
            yield from _release(
                (stream, place), programs.waiters.get((stream, place), ()), semaphores, settle=bool(adds)
            )
        return
    yield {"name": "wait", **on}
    yield {"name": "nop"}
    written = _buffers_written(steps)
    for place, step in enumerate(steps):
        yield from _acquire((stream, place), step, semaphores)
        if kind == "port" and len(step.moves) == 1:
            yield _put("pws", step.moves, written, kind)
            continue
        for _, group in groupby(step.moves, key=lambda move: move.source.buffer):
            moves = list(group)
            for first in range(0, len(moves), CHANNELS_PER_OPERATION):
                yield _put("put", moves[first : first + CHANNELS_PER_OPERATION], written, kind)
        yield {"name": "nop"}
        yield {"name": "signal", **on}
    if kind == "port":
        yield {"name": "nop"}
        yield {"name": "flush", **on}


def _acquire(point: Point, step: Step, semaphores: Mapping[tuple[Point, Point], int]) -> Iterator[Document]:
    ids = [semaphores.get((other, point), 0) for other in step.waits]
    for first in range(0, len(ids), SEMAPHORES_PER_OPERATION):
        yield {"name": "sem_acquire", "semaphore_ids": ids[first : first + SEMAPHORES_PER_OPERATION]}
    if ids:
        yield {"name": "nop"}


def _release(
    point: Point, waiters: Sequence[Point], semaphores: Mapping[tuple[Point, Point], int], settle: bool
) -> Iterator[Document]:
    """Release the steps that wait; with ``settle``, other threads have written, so a barrier comes first."""
    ids = [semaphores.get((point, waiter), 0) for waiter in waiters]
    if ids and settle:
        yield {"name": "nop"}
    for first in range(0, len(ids), SEMAPHORES_PER_OPERATION):
        yield {"name": "sem_release", "semaphore_ids": ids[first : first + SEMAPHORES_PER_OPERATION]}


def _local(step: Step) -> Iterator[Document]:
    first, *rest = step.moves
    if not rest:
        yield {"name": "copy", "src_buff": [_local_buffer(first.source, first)], "dst_buff": _target(first)}
        return
    # A sum, in order: as many as an operation reads at once, then the result with the next.
    places = [move.source for move in step.moves]
    yield _reduce(places[:INPUTS_PER_OPERATION], first)
    for start in range(INPUTS_PER_OPERATION, len(places), INPUTS_PER_OPERATION - 1):
        yield {"name": "nop"}
        yield _reduce([first.target, *places[start : start + INPUTS_PER_OPERATION - 1]], first)


def _reduce(sources: list[StreamPlace], move: Move) -> Document:
    read = [_local_buffer(place, move) for place in sources]
    return {"name": "re", "src_buff": read, "dst_buff": _target(move), "reduce_op": "sum"}


def _target(move: Move) -> list[Document]:
    return [_local_buffer(move.target, move)]


def _local_buffer(place: StreamPlace, move: Move) -> Document:
    return {"type": place.buffer, "index": place.index, "size": move.count}


def _put(name: str, moves: Sequence[Move], written: list[str], kind: str) -> Document:
    """Moves from one buffer to the receiver's. Through ports, every move names the channel."""
    targets = [move.landing or move.target for move in moves]
    operation: Document = {
        "name": name,
        "src_buff": [_local_buffer(move.source, move) for move in moves],
        "dst_buff": [
            {"buffer_id": written.index(place.buffer), "index": place.index, "size": move.count}
            for place, move in zip(targets, moves, strict=True)
        ],
        "channel_type": kind,
    }
    if kind == "port":
        operation["channel_ids"] = [0] * len(moves)
    return operation
