"""The collectives: which chunks a size and a chunk count give, where they start, and where they must end.

``size_bytes`` is the largest buffer of a rank, as benchmarks of NCCL count it; n ranks, k parts (``chunk_count``):

| collective | chunks | bytes of one | sources | targets |
| --- | --- | --- | --- | --- |
| allgather | (r, j) | size / (n k) | r | all |
| reduce_scatter | (r, j), sums | size / (n k) | all | r |
| allreduce | (r, j), sums | size / (n k) | all | all |
| alltoall | (s, d, j) | size / (n k) | s | d |
| alltoallv | (s, d, j) | pair_bytes[s][d] / k | s | d |
| broadcast | j | size / k | root | all |
| reduce | j, sums | size / k | all | root |
| scatter | (d, j) | size / (n k) | root | d |
| gather | (s, j) | size / (n k) | s | root |
| custom | as given | | | |

Chunks are numbered in that order, the last index fastest. Form ``gather`` of a combining collective moves every rank's
input instead and sums at the end: allreduce (r, j) of size / k, from r to all; reduce the same, to the root;
reduce_scatter (s, d, j) of size / (n k), from s to d.

Uneven sizes: where bytes do not divide into k parts, the first parts of ``alltoallv`` are one byte longer; the other
collectives refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadmaster.errors import InputError
from loadmaster.models.collective.instance import Chunk, Instance
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import Collective, CollectiveProblem, Sketch
from loadmaster.models.collective.sketch import connections, logical_topology, with_senders
from loadmaster.models.collective.symmetry import generator

COMBINING: tuple[Collective, ...] = ("allreduce", "reduce_scatter", "reduce")
ROOTED: tuple[Collective, ...] = ("broadcast", "reduce", "scatter", "gather")


def chunks_of(
    problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form = "direct"
) -> tuple[Chunk, ...]:
    """The chunks of a problem at a size; ``InputError``: it does not divide, or the collective has no such form."""
    if form == "gather" and problem.collective not in COMBINING:
        raise InputError("form", form, f"is no form of {problem.collective}", f"It is of {', '.join(COMBINING)}.")
    if problem.collective == "custom":
        return problem.custom or ()
    return tuple(_chunks(problem, size_bytes, chunk_count, form))


def forms_of(problem: CollectiveProblem) -> tuple[Form, ...]:
    """The forms that algorithms of a problem may have."""
    return ("direct", "gather") if problem.collective in COMBINING else ("direct",)


def named_chunk_counts(problem: CollectiveProblem) -> tuple[int, ...]:
    """The numbers of chunks that a problem or its sketch names; empty where algorithms may have any."""
    drawn = None if problem.sketch is None else problem.sketch.chunk_count
    if problem.collective == "custom":
        return (1,)
    return problem.chunk_counts or (() if drawn is None else (drawn,))


def pieces(problem: CollectiveProblem) -> int:
    """Number of equal pieces into which the largest buffer is cut before ``chunk_count`` cuts them further."""
    return 1 if problem.collective in ("broadcast", "reduce") else problem.topology.rank_count


def cuts(problem: CollectiveProblem, chunk_count: int, form: Form) -> int:
    """Number of equal chunks into which the largest buffer is cut in all: sizes that run are multiples of it."""
    gathers = form == "gather" and problem.collective in ("allreduce", "reduce")
    return chunk_count * (1 if gathers else pieces(problem))


def chunk_bytes(problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form = "direct") -> int:
    """The size of every chunk, of a collective whose chunks are equal; ``InputError`` if the size does not divide."""
    cut = cuts(problem, chunk_count, form)
    if chunk_count < 1 or size_bytes % cut:
        ranks = problem.topology.rank_count
        raise InputError(
            "chunk_counts",
            chunk_count,
            f"does not divide {size_bytes} bytes: {problem.collective} of {ranks} ranks cuts them into {cut} chunks",
            f"Give a size that is a multiple of {cut}, or another chunk count.",
        )
    return size_bytes // cut


def _chunks(problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form) -> Iterator[Chunk]:
    count = problem.topology.rank_count
    ranks, root = range(count), problem.root or 0
    everyone, parts = tuple(ranks), range(chunk_count)
    if problem.collective == "alltoallv":
        for source, row in enumerate(problem.pair_bytes or ()):
            for target, pair_bytes in enumerate(row):
                for j in parts:
                    part_bytes = pair_bytes // chunk_count + (j < pair_bytes % chunk_count)
                    yield Chunk(part_bytes, (source,), (target,))
        return
    part_bytes = chunk_bytes(problem, size_bytes, chunk_count, form)
    match problem.collective, form:
        case ("allgather", _):
            yield from (Chunk(part_bytes, (r,), everyone) for r in ranks for _ in parts)
        case ("reduce_scatter", "direct"):
            yield from (Chunk(part_bytes, everyone, (r,), reduces=True) for r in ranks for _ in parts)
        case ("allreduce", "direct"):
            yield from (Chunk(part_bytes, everyone, everyone, reduces=True) for _ in ranks for _ in parts)
        case ("allreduce", _):
            yield from (Chunk(part_bytes, (r,), everyone) for r in ranks for _ in parts)
        case ("alltoall", _) | ("reduce_scatter", _):
            yield from (Chunk(part_bytes, (s,), (d,)) for s in ranks for d in ranks for _ in parts)
        case ("broadcast", _):
            yield from (Chunk(part_bytes, (root,), everyone) for _ in parts)
        case ("reduce", "direct"):
            yield from (Chunk(part_bytes, everyone, (root,), reduces=True) for _ in parts)
        case ("reduce", _):
            yield from (Chunk(part_bytes, (r,), (root,)) for r in ranks for _ in parts)
        case ("scatter", _):
            yield from (Chunk(part_bytes, (root,), (d,)) for d in ranks for _ in parts)
        case ("gather", _):
            yield from (Chunk(part_bytes, (s,), (root,)) for s in ranks for _ in parts)


def instance_of(
    problem: CollectiveProblem,
    size_bytes: int,
    chunk_count: int,
    form: Form = "direct",
    sketch: Sketch | None = None,
) -> Instance:
    """The instance that algorithms of this size, chunk count and form are made for; ``sketch`` replaces the problem's
    own. ``InputError``: the size does not divide, or the sketch does not fit the topology."""
    chunks = chunks_of(problem, size_bytes, chunk_count, form)
    sketch = sketch or problem.sketch
    if sketch is None:
        return Instance(problem.topology, chunks, connections=(0,) * len(problem.topology.switches))
    topology = logical_topology(problem.topology, sketch)
    chunks = with_senders(topology, sketch, chunks)
    plain = Instance(topology, chunks, (), connections(topology, sketch))
    owners = _owners(problem, chunk_count, form)
    generators = tuple(
        generator(plain, offset, group, owners, f"sketch.symmetry[{index}]")
        for index, (offset, group) in enumerate(sketch.symmetry)
    )
    return Instance(topology, chunks, generators, plain.connections)


def _owners(problem: CollectiveProblem, chunk_count: int, form: Form) -> Sequence[int] | None:
    """The rank that a chunk goes along with where its ends do not say it: piece r of an AllReduce is rank r's."""
    if problem.collective != "allreduce" or form != "direct":
        return None
    return [rank for rank in range(problem.topology.rank_count) for _ in range(chunk_count)]
