"""An algorithm as messages with their dependencies: what executors run and exporters write.

Message i of the global order may leave once every message it ``waits_for`` has arrived at its source. All ranks agree
on the order, which is by start time: waiting along it never deadlocks.

Source: [Shah23], section 5.6.2 (dependency insertion).
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.models.collective.buffers import Layout, layout
from loadmaster.models.collective.plan import Algorithm, Send
from loadmaster.models.collective.problem import CollectiveProblem


@dataclass(frozen=True)
class Message:
    """One send, with what it needs.

    Attributes:
        index: place in the global order.
        waits_for: indices of the messages to ``source`` that carry any of its chunks and come before it; ascending.
        level: length of the longest chain of messages that it waits for.
    """

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
