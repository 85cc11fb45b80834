"""An algorithm as MSCCL XML, for the loaders of msccl-executor-nccl and RCCL.

A loader takes every file of a folder (``MSCCL_ALGO_DIR``) and uses the first whose collective, number of GPUs and range
of bytes fit a call. It reads a subset of XML: no declaration, one space between attributes, double quotes. Its limits,
the strictest of the loaders', are below; what does not fit is refused here, where there are words for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

from loadmaster.errors import InputError
from loadmaster.models.collective.exports.streams import (
    Move,
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

STEPS_PER_BLOCK = 64
UNITS_PER_STEP = 71
CHANNELS = 32
PEERS_PER_CHANNEL = 32
# All blocks must be resident at once: the multiprocessors of the smallest GPU that the loaders run on (V100).
BLOCKS = 80
XML_NODES = 4096
LARGEST_OFFSET = 2**15 - 1
# Above this many bytes to a message, bandwidth matters more than what a flag in every word saves.
LARGEST_LL_BYTES = 32 << 10

# Name in the format, and whether a call counts the elements of one rank's share.
_COLLECTIVES: Mapping[Collective, tuple[str, bool]] = {
    "allgather": ("allgather", False),
    "reduce_scatter": ("reducescatter", False),
    "allreduce": ("allreduce", False),
    "alltoall": ("alltoall", False),
    "broadcast": ("broadcast", False),
    "reduce": ("reduce", False),
    "scatter": ("scatter", True),
    "gather": ("gather", True),
}


def msccl_files(problem: CollectiveProblem, plan: CollectivePlan, instances: int = 1) -> dict[str, str]:
    """File name -> XML of each algorithm of the table, for the sizes it is the fastest of. Raises as
    :func:`msccl_xml`."""
    files = {}
    for n, algorithm in enumerate(plan.algorithms):
        ends = plan.algorithms[n + 1].from_bytes - 1 if n + 1 < len(plan.algorithms) else 0
        name = f"{problem.collective}-{problem.topology.rank_count}-{algorithm.size_bytes}.xml"
        files[name] = msccl_xml(problem, algorithm, instances=instances, min_bytes=algorithm.from_bytes, max_bytes=ends)
    return files


def msccl_xml(
    problem: CollectiveProblem,
    algorithm: Algorithm,
    *,
    instances: int = 1,
    min_bytes: int = 0,
    max_bytes: int = 0,
) -> str:
    """Write one algorithm as MSCCL XML. Loaders compare no roots: a rooted one is for programs that use its root.

    Args:
        instances: parallel copies of every threadblock, each with its part of every chunk.
        min_bytes, max_bytes: the first and last size that it is for, counted as in the problem; 0: no last one.

    Raises:
        InputError: the format has no such collective, or a limit of the loaders is passed.
    """
    if problem.collective not in _COLLECTIVES:
        known = ", ".join(_COLLECTIVES)
        raise InputError("collective", problem.collective, "is not known to MSCCL", f"It knows {known}.")
    lowered = lower(problem, algorithm)
    expect_even(lowered, instances)
    # Before the work of building what is refused then.
    _expect("channels", instances, CHANNELS)
    _expect("threadblocks of a GPU", fewest_blocks(lowered, instances), BLOCKS)
    programs = fitted(
        lowered,
        algorithm.chunk_count,
        instances,
        most_units=UNITS_PER_STEP,
        staged=False,
        longest=STEPS_PER_BLOCK,
        length=lambda made, stream: sum(_length(step) for step in made.streams[stream]),
    )
    unit_bytes = lowered.buffers.chunks[0].size_bytes // instances
    name, counts_share = _COLLECTIVES[problem.collective]
    share = problem.topology.rank_count if counts_share else 1
    largest_bytes = max(
        (m.count * unit_bytes for steps in programs.streams.values() for s in steps for m in s.moves), default=0
    )
    lanes = 1 + max((s.lane for s in programs.streams), default=0)
    inputs = [n // unit_bytes for n in lowered.buffers.input_bytes]
    outputs = [n // unit_bytes for n in lowered.buffers.output_bytes]
    # A plain in-place call is safe where every rank's place in the output is its input, or is read before it is
    # written: not where sums start from a copy, nor where pairs change places.
    in_place = algorithm.form == "direct" and problem.collective != "alltoall"
    head = {
        "name": f"{problem.name} {algorithm.size_bytes}".replace('"', "'")[:200],
        "proto": "LL" if largest_bytes <= LARGEST_LL_BYTES else "Simple",
        "nchannels": instances * lanes,
        "nchunksperloop": max(*inputs, *outputs) // share,
        "ngpus": problem.topology.rank_count,
        "coll": name,
        "inplace": int(in_place),
        "outofplace": 1,
        "minBytes": min_bytes // share,
        "maxBytes": max_bytes // share,
        "redop": "sum",
    }
    _expect("channels", instances * lanes, CHANNELS)
    lines = [f"<algo{_attributes(head)}>"]
    for rank in range(problem.topology.rank_count):
        sizes = {"id": rank, "i_chunks": inputs[rank], "o_chunks": outputs[rank], "s_chunks": programs.scratch[rank]}
        _expect("units of a buffer", max(sizes.values()), LARGEST_OFFSET)
        body = _gpu(programs, rank, lanes)
        # A loader keeps the nodes of its own GPU, and one for every other.
        nodes = sum(not line.startswith("    </") for line in body) + problem.topology.rank_count + 1
        _expect("XML nodes of a GPU", nodes, XML_NODES)
        lines += [f"  <gpu{_attributes(sizes)}>", *body, "  </gpu>"]
    return "\n".join([*lines, "</algo>", ""])


def _gpu(programs: Programs, rank: int, lanes: int) -> list[str]:
    streams = programs.of_rank(rank)
    _expect("threadblocks of a GPU", len(streams), BLOCKS)
    peers = Counter((stream.role, stream.instance, stream.lane) for stream in streams)
    _expect("peers on a channel", max(peers.values(), default=0), PEERS_PER_CHANNEL)
    block = {stream: n for n, stream in enumerate(streams)}
    last = {stream: _last_steps(programs.streams[stream]) for stream in streams}
    lines = []
    for stream in streams:
        attributes = {
            "id": block[stream],
            "send": stream.peer if stream.role == "send" else -1,
            "recv": stream.peer if stream.role == "receive" else -1,
            "chan": stream.instance * lanes + stream.lane,
        }
        lines.append(f"    <tb{_attributes(attributes)}>")
        number = 0
        for place, step in enumerate(programs.streams[stream]):
            waits = [(block[other], last[other][at]) for other, at in step.waits]
            for wait in waits[:-1]:
                lines.append(_step(number, "nop", StreamPlace("i", -1), StreamPlace("i", -1), 0, wait, False))
                number += 1
            for n, move in enumerate(step.moves):
                wait = waits[-1] if waits and not n else (-1, -1)
                signals = (stream, place) in programs.waiters and n == len(step.moves) - 1
                kind, source, target = _operation(stream, move)
                lines.append(_step(number, kind, source, target, move.count, wait, signals))
                number += 1
        lines.append("    </tb>")
    return lines


def _operation(stream: Stream, move: Move) -> tuple[str, StreamPlace, StreamPlace]:
    if stream.role == "send":
        return "s", move.source, move.source
    if stream.role == "local":
        return ("cpy" if move.operand is None else "re"), move.source, move.target
    return ("r", move.target, move.target) if move.operand is None else ("rrc", move.operand, move.target)


def _length(step: Step) -> int:
    """Steps of the format: a step waits for one other; each further wait is a step that does nothing else."""
    return max(0, len(step.waits) - 1) + len(step.moves)


def _last_steps(steps: Sequence[Step]) -> list[int]:
    found, end = [], -1
    for step in steps:
        end += _length(step)
        found.append(end)
    return found


def _step(
    number: int, kind: str, source: StreamPlace, target: StreamPlace, count: int, wait: tuple[int, int], has: bool
) -> str:
    attributes = {
        "s": number,
        "type": kind,
        "srcbuf": source.buffer,
        "srcoff": source.index,
        "dstbuf": target.buffer,
        "dstoff": target.index,
        "cnt": count,
        "depid": wait[0],
        "deps": wait[1],
        "hasdep": int(has),
    }
    return f"      <step{_attributes(attributes)}/>"


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(f" {key}={quoteattr(str(value))}" for key, value in values.items())


def _expect(what: str, found: int, most: int) -> None:
    if found > most:
        remedy = "Export fewer instances, or plan with fewer chunks or a sketch with fewer links."
        raise InputError("plan", found, f"takes more {what} than MSCCL's loaders hold ({most})", remedy)
