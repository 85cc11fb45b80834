"""An algorithm as messages with their dependencies: what executors run and exporters write.

Message i of the global order may leave once every message it ``waits_for`` has arrived at its source. All ranks agree
on the order, which is by start time: waiting along it never deadlocks. A layout gives the places of chunks in each
rank's input and output, in bytes. A rank that only passes a chunk on holds it in scratch, which is the executor's
business. Source: [Shah23], section 5.6.2 (dependency insertion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmaster.models.collective.collectives import chunks_of
from loadmaster.models.collective.instance import Chunk
from loadmaster.models.collective.plan import Algorithm, Form, Send
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
    """The buffers of one algorithm: inputs and outputs are filled with their chunks by number. That is the order of
    every collective in ``torch.distributed``."""
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


@dataclass(frozen=True)
class Message:
    """One send, at place ``index`` of the global order. ``waits_for``: indices of the earlier messages to ``source``
    that carry any of its chunks, ascending. ``level``: length of the longest chain of messages that it waits for."""

    index: int
    source: int
    target: int
    chunks: tuple[int, ...]
    combines: bool
    waits_for: tuple[int, ...]
    level: int


@dataclass(frozen=True)
class Lowered:
    """An algorithm ready to run: messages in the global order, and the buffers."""

    rank_count: int
    messages: tuple[Message, ...]
    buffers: Layout


def lower(problem: CollectiveProblem, algorithm: Algorithm) -> Lowered:
    """Lower a checked algorithm to messages and buffers."""
    buffers = layout(problem, algorithm.size_bytes, algorithm.chunk_count, algorithm.form)
    return Lowered(problem.topology.rank_count, messages_of(algorithm.sends), buffers)


def messages_of(sends: tuple[Send, ...]) -> tuple[Message, ...]:
    """Sends in the global order, with what each waits for."""
    arrivals: dict[tuple[int, int], list[int]] = {}
    messages: list[Message] = []
    for index, send in enumerate(sorted(sends, key=lambda s: (s.start_ns, s.source, s.target))):
        needed = {m for chunk in send.chunks for m in arrivals.get((chunk, send.source), ())}
        level = 1 + max((messages[m].level for m in needed), default=-1)
        messages.append(
            Message(index, send.source, send.target, send.chunks, send.combines, tuple(sorted(needed)), level)
        )
        for chunk in send.chunks:
            arrivals.setdefault((chunk, send.target), []).append(index)
    return tuple(messages)
