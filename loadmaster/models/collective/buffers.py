"""Places of an algorithm's chunks in each rank's input and output, for whoever runs or exports it.

Offsets are bytes. A rank that only passes a chunk on holds it in scratch, which is the executor's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Form
from loadmaster.models.collective.problem import CollectiveProblem


@dataclass(frozen=True)
class Sum:
    """Form ``gather``: at the end, the output from ``offset`` on is the sum of these chunks, added in this order."""

    offset: int
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Buffers of each rank: how large they are, and where chunks are in them.

    Attributes:
        inputs: chunk -> offset of it (or of the rank's part of it) in the rank's input.
        outputs: chunk -> offset in the rank's output, where the rank is a target. Empty in form ``gather``.
        sums: form ``gather``: what to add up at the end.
    """

    chunks: tuple[Chunk, ...]
    input_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    inputs: tuple[Mapping[int, int], ...]
    outputs: tuple[Mapping[int, int], ...]
    sums: tuple[tuple[Sum, ...], ...]


def layout(problem: CollectiveProblem, size_bytes: int, chunk_count: int, form: Form) -> Layout:
    """The buffers of one algorithm.

    Chunks that a rank starts with, by number, fill its input; chunks that it must end with, by number, fill its output.
    That is the order of every collective in ``torch.distributed``.
    """
    chunks = chunks_of(problem, size_bytes, chunk_count, form)
    ranks = range(problem.topology.rank_count)
    inputs, input_bytes = zip(*(_packed(chunks, [r in c.sources for c in chunks]) for r in ranks), strict=True)
    if form == "direct":
        outputs, output_bytes = zip(*(_packed(chunks, [r in c.targets for c in chunks]) for r in ranks), strict=True)
        return Layout(chunks, input_bytes, output_bytes, inputs, outputs, tuple(() for _ in ranks))
    sums = tuple(_sums(chunks, rank) for rank in ranks)
    output_bytes = tuple(sum(chunks[s.chunks[0]].size_bytes for s in of_rank) for of_rank in sums)
    return Layout(chunks, input_bytes, output_bytes, inputs, tuple({} for _ in ranks), sums)


def _packed(chunks: tuple[Chunk, ...], held: list[bool]) -> tuple[Mapping[int, int], int]:
    """Offsets of the chunks held, one after another, and their bytes together."""
    offsets, end = {}, 0
    for index, chunk in enumerate(chunks):
        if held[index]:
            offsets[index] = end
            end += chunk.size_bytes
    return offsets, end


def _sums(chunks: tuple[Chunk, ...], rank: int) -> tuple[Sum, ...]:
    """Sums that one rank makes: its chunks of each source are the same parts in the same order."""
    parts: dict[int, list[int]] = {}
    for index, chunk in enumerate(chunks):
        if rank in chunk.targets:
            parts.setdefault(chunk.sources[0], []).append(index)
    found, offset = [], 0
    for together in zip(*(parts[source] for source in sorted(parts)), strict=True):
        found.append(Sum(offset, tuple(together)))
        offset += chunks[together[0]].size_bytes
    return tuple(found)
