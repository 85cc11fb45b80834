"""Steps of one rank in an algorithm: sends and receives, and where in its buffers their chunks are.

Messages are cut into batches that are the same on every rank, so that ranks meet in the same order. A batch holds
messages that do not wait for one another. What a batch reads is not written before the batch is over: copies land where
nothing was, parts of sums land in staging and are added afterwards, in the global order of messages.

Source: [Shah23], section 5.6.2 (buffer allocation, instruction generation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from loadmaster.models.collective.lowering import Lowered, Message, Sum

Order = Literal["levels", "global"]
Buffer = Literal["input", "output", "scratch"]

# A batch of point-to-point calls above this hangs under load in some releases of NCCL and PyTorch.
LARGEST_BATCH = 255


@dataclass(frozen=True)
class Piece:
    """A run of bytes in one of a rank's buffers."""

    buffer: Buffer
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Outgoing:
    """A message that this rank sends. ``pieces``: what it is put together from; one: it is sent from where it is."""

    message: Message
    size_bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Incoming:
    """A message that this rank receives; ``direct``: where it lands; None: staged, added or copied after its batch."""

    message: Message
    size_bytes: int
    direct: Piece | None


@dataclass(frozen=True)
class Arrival:
    """One chunk of a staged message, once its batch is over.

    Attributes:
        incoming: place of the message among the step's incoming ones.
        offset: of the chunk within the message.
        own: where the value is that it is added to; None: nothing is there yet, or it has been added to already.
        result: where it goes, or the sum of which it is the last part; None: the sum is not complete.
    """

    chunk: int
    incoming: int
    offset: int
    size_bytes: int
    combines: bool
    own: Piece | None
    result: Piece | None


@dataclass(frozen=True)
class Step:
    """One batch, as one rank sees it; messages in the global order."""

    outgoing: tuple[Outgoing, ...]
    incoming: tuple[Incoming, ...]
    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True)
class Staged:
    """All that one rank does in an algorithm.

    Attributes:
        unit_bytes: every chunk is a multiple of it.
        copies: at the end: from where to where, for what a rank has that no message brings.
        sums: form ``gather``: at the end, what to add up for the output from an offset on.
        origins: per region of the output, where in the input the same chunk is (None: nowhere); for calls in place.
    """

    rank: int
    input_bytes: int
    output_bytes: int
    scratch_bytes: int
    unit_bytes: int
    steps: tuple[Step, ...]
    copies: tuple[tuple[Piece, Piece], ...]
    sums: tuple[tuple[int, tuple[Piece, ...]], ...]
    origins: tuple[tuple[int, int, int | None], ...]


def batches(messages: Sequence[Message], order: Order, limit: int = LARGEST_BATCH) -> list[list[Message]]:
    """Messages cut into batches, the same whoever asks; no rank has more than ``limit`` ends of messages in one.
    ``levels``: messages with equally long chains before them go together. ``global``: as many as follow one another in
    the global order and do not wait for one another."""
    ordered = sorted(messages, key=lambda m: (m.level, m.index)) if order == "levels" else list(messages)
    found: list[list[Message]] = []
    ends: dict[int, int] = {}
    inside: set[int] = set()
    for message in ordered:
        waits = (
            message.level != found[-1][0].level if found and order == "levels" else bool(inside & {*message.waits_for})
        )
        full = any(ends.get(rank, 0) >= limit for rank in (message.source, message.target))
        if not found or waits or full:
            found.append([])
            ends, inside = {}, set()
        found[-1].append(message)
        inside.add(message.index)
        for rank in (message.source, message.target):
            ends[rank] = ends.get(rank, 0) + 1
    return found


def stage(lowered: Lowered, rank: int, order: Order = "levels") -> Staged:
    """Work out what a rank does in a lowered algorithm."""
    return _Stage(lowered, rank).staged(order)


class _Stage:
    """Places of the chunks on one rank while the batches go by."""

    def __init__(self, lowered: Lowered, rank: int) -> None:
        self.lowered, self.rank = lowered, rank
        self.buffers = lowered.buffers
        self.size_of = [chunk.size_bytes for chunk in self.buffers.chunks]
        self.inputs, self.outputs = self.buffers.inputs[rank], self.buffers.outputs[rank]
        self.scratch: dict[int, int] = {}
        self.scratch_bytes = 0
        # Where a chunk, or this rank's part of it, is at present.
        self.place = {chunk: Piece("input", offset, self.size_of[chunk]) for chunk, offset in self.inputs.items()}
        self.whole = {chunk for chunk in self.place if not self.buffers.chunks[chunk].reduces}
        self.parts_to_come = dict.fromkeys(self.place, 0)
        self.adding: set[int] = set()
        for message in lowered.messages:
            if message.target == rank and message.combines:
                for chunk in message.chunks:
                    self.parts_to_come[chunk] = self.parts_to_come.get(chunk, 0) + 1

    def staged(self, order: Order) -> Staged:
        steps = []
        for batch in batches(self.lowered.messages, order):
            outgoing = [self._outgoing(m) for m in batch if m.source == self.rank]
            received = [m for m in batch if m.target == self.rank]
            if outgoing or received:
                steps.append(self._step(outgoing, received))
        copies = []
        for chunk, offset in self.outputs.items():
            home = Piece("output", offset, self.size_of[chunk])
            if home.size_bytes and self.place[chunk] != home:
                copies.append((self.place[chunk], home))
        sums = tuple((s.offset, tuple(self.place[chunk] for chunk in s.chunks)) for s in self.buffers.sums[self.rank])
        return Staged(
            rank=self.rank,
            input_bytes=self.buffers.input_bytes[self.rank],
            output_bytes=self.buffers.output_bytes[self.rank],
            scratch_bytes=self.scratch_bytes,
            unit_bytes=math.gcd(*(size for size in self.size_of if size)),
            steps=tuple(steps),
            copies=tuple(copies),
            sums=sums,
            origins=tuple(self._origins(self.buffers.sums[self.rank])),
        )

    def _outgoing(self, message: Message) -> Outgoing:
        pieces = merged(self.place[chunk] for chunk in message.chunks)
        return Outgoing(message, sum(piece.size_bytes for piece in pieces), pieces)

    def _step(self, outgoing: list[Outgoing], received: list[Message]) -> Step:
        incoming: list[Incoming] = []
        arrivals: list[Arrival] = []
        for message in received:
            size = sum(self.size_of[chunk] for chunk in message.chunks)
            fresh = [chunk for chunk in message.chunks if chunk not in self.whole]
            if message.combines:
                arrivals += self._parts(message, len(incoming))
                incoming.append(Incoming(message, size, None))
                continue
            homes = {chunk: self._home(chunk) for chunk in fresh}
            together = merged(homes[chunk] for chunk in fresh)
            direct = together[0] if len(together) == 1 and len(fresh) == len(message.chunks) else None
            if direct is None:
                arrivals += self._copies(message, homes, len(incoming))
            incoming.append(Incoming(message, size, direct))
            self.place.update(homes)
            self.whole.update(fresh)
        return Step(tuple(outgoing), tuple(incoming), tuple(arrivals))

    def _parts(self, message: Message, place: int) -> list[Arrival]:
        found, offset = [], 0
        for chunk in message.chunks:
            own = None if chunk in self.adding else self.place.get(chunk)
            self.adding.add(chunk)
            self.parts_to_come[chunk] -= 1
            result = None if self.parts_to_come[chunk] else self._home(chunk)
            if result is not None:
                self.place[chunk] = result
            found.append(Arrival(chunk, place, offset, self.size_of[chunk], True, own, result))
            offset += self.size_of[chunk]
        return found

    def _copies(self, message: Message, homes: dict[int, Piece], place: int) -> list[Arrival]:
        found, offset = [], 0
        for chunk in message.chunks:
            if chunk in homes:
                found.append(Arrival(chunk, place, offset, self.size_of[chunk], False, None, homes[chunk]))
            offset += self.size_of[chunk]
        return found

    def _home(self, chunk: int) -> Piece:
        """Place of a chunk that arrives: the output where it belongs there, scratch otherwise."""
        if chunk in self.outputs:
            return Piece("output", self.outputs[chunk], self.size_of[chunk])
        if chunk not in self.scratch:
            self.scratch[chunk] = self.scratch_bytes
            self.scratch_bytes += self.size_of[chunk]
        return Piece("scratch", self.scratch[chunk], self.size_of[chunk])

    def _origins(self, sums: Iterable[Sum]) -> Iterable[tuple[int, int, int | None]]:
        for chunk, offset in self.outputs.items():
            yield offset, self.size_of[chunk], self.inputs.get(chunk)
        for total in sums:
            own = next((self.inputs[chunk] for chunk in total.chunks if chunk in self.inputs), None)
            yield total.offset, self.size_of[total.chunks[0]], own


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Pieces in their order, neighbours in memory made one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and last.buffer == piece.buffer and last.offset + last.size_bytes == piece.offset:
            found[-1] = Piece(last.buffer, last.offset, last.size_bytes + piece.size_bytes)
        else:
            found.append(piece)
    return tuple(found)
