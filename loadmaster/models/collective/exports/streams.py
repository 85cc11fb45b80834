"""An algorithm as programs of threadblocks: what every foreign format is written from.

Each directed link has a stream that sends on the source and one that receives on the target; a rank's own copies and
final sums are a local stream. A stream runs its steps one after another, in the global order of messages; streams run
at once. A step waits for the steps of its own rank that wrote what it reads. A send may even block until it is
received: the first message of the global order that is not done has nothing before it in any stream, so there is no
deadlock.

Offsets are in units: one chunk, cut into as many parts as there are instances. Instance q moves part q of every piece
([Shah23], section 5.6.2), in streams of its own. A stream that a format would find too long is
dealt out over lanes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Literal

from loadmaster.errors import InputError
from loadmaster.models.collective.lowering import Lowered, Message

# A message of more moves is several steps, so that no step outgrows a threadblock.
MOVES_PER_STEP = 32

Buffer = Literal["i", "o", "s"]
Role = Literal["send", "receive", "local"]


@dataclass(frozen=True)
class StreamPlace:
    """Units from ``index`` on in a rank's input, output or scratch."""

    buffer: Buffer
    index: int

    def after(self, count: int) -> StreamPlace:
        """The place that many units further."""
        return StreamPlace(self.buffer, self.index + count)


@dataclass(frozen=True)
class Move:
    """Consecutive units that move together from ``source`` (on the sender, or the rank itself) to ``target``. They are
    added to ``operand`` (None: to nothing), after landing on the receiver at ``landing`` (None: nowhere)."""

    source: StreamPlace
    target: StreamPlace
    operand: StreamPlace | None = None
    landing: StreamPlace | None = None
    count: int = 1

    def takes(self, other: Move, most: int) -> bool:
        """Return whether another move goes on where this one ends, and both fit in ``most`` units."""
        mine, its = (self.source, self.target, self.operand, self.landing), other.places
        ends = tuple(None if place is None else place.after(self.count) for place in mine)
        return self.count + other.count <= most and ends == its

    @property
    def places(self) -> tuple[StreamPlace, StreamPlace, StreamPlace | None, StreamPlace | None]:
        return (self.source, self.target, self.operand, self.landing)


@dataclass(frozen=True)
class Stream:
    """The stream of one threadblock; ``peer`` is the rank itself where the stream is local."""

    role: Role
    rank: int
    peer: int
    instance: int
    lane: int

    @property
    def link(self) -> tuple[int, int]:
        """Ranks that the stream joins, (from, to); a rank with itself where it is local."""
        return (self.peer, self.rank) if self.role == "receive" else (self.rank, self.peer)


Point = tuple[Stream, int]
"""A step of a stream, by its place."""


@dataclass(frozen=True)
class Step:
    """Moves of one message (or local ones), after all that they wait for."""

    moves: tuple[Move, ...]
    waits: tuple[Point, ...]


@dataclass(frozen=True)
class Programs:
    """All streams, and how many units of scratch each rank needs."""

    streams: Mapping[Stream, Sequence[Step]]
    scratch: Sequence[int]

    def of_rank(self, rank: int) -> Sequence[Stream]:
        """The streams of a rank, in an order that every rank agrees on."""
        return self._by_rank.get(rank, ())

    @cached_property
    def waiters(self) -> Mapping[Point, Sequence[Point]]:
        """Steps that wait for each step, for every step that has any."""
        found: dict[Point, list[Point]] = defaultdict(list)
        for stream, steps in self.streams.items():
            for place, step in enumerate(steps):
                for point in step.waits:
                    found[point].append((stream, place))
        return found

    @cached_property
    def _by_rank(self) -> Mapping[int, Sequence[Stream]]:
        order = {"send": 0, "receive": 1, "local": 2}
        found: dict[int, list[Stream]] = defaultdict(list)
        for stream in sorted(self.streams, key=lambda s: (order[s.role], s.instance, s.lane, s.peer)):
            found[stream.rank].append(stream)
        return found


def expect_even(lowered: Lowered, instances: int) -> None:
    """Refuse chunks of several sizes, or that do not divide into that many instances, with an ``InputError``."""
    sizes = sorted({chunk.size_bytes for chunk in lowered.buffers.chunks})
    if len(sizes) != 1:
        raise InputError(
            "chunks", sizes, "are of several sizes, which the format cannot say", "Export an even collective."
        )
    if instances < 1 or sizes[0] % instances:
        raise InputError(
            "instances", instances, f"do not divide chunks of {sizes[0]} bytes", "Give a divisor, as in 1, 2 or 4."
        )


def fewest_blocks(lowered: Lowered, instances: int) -> int:
    """Threadblocks that some rank needs at least: one for each instance of each link that it sends or receives on."""
    links = {(message.source, message.target) for message in lowered.messages}
    of_rank = Counter(rank for link in links for rank in link)
    return instances * max(of_rank.values(), default=0)


def fitted(
    lowered: Lowered,
    chunk_count: int,
    instances: int,
    *,
    most_units: int,
    staged: bool,
    longest: int,
    length: Callable[[Programs, Stream], int],
) -> Programs:
    """Streams of at most ``longest`` operations, as ``length`` counts them, on as many lanes as that takes.
    ``most_units``: in one move. ``staged``: what is added lands in scratch first. ``InputError``: one step is too
    long."""
    lanes: dict[tuple[int, int], int] = {}
    while True:
        programs = _Builder(lowered, chunk_count, instances, lanes, most_units, staged).build()
        over = {s: n for s in programs.streams if (n := length(programs, s)) > longest}
        if not over:
            return programs
        for stream, operations in over.items():
            if len(programs.streams[stream]) == 1:
                what = f"one step on {stream.link[0]} -> {stream.link[1]} takes {operations} operations"
                remedy = "Plan with fewer chunks (chunk_counts), or without the form gather."
                raise InputError("plan", operations, f"{what}, and a threadblock holds {longest}", remedy)
        for link in {s.link for s in over}:
            worst = max(operations for s, operations in over.items() if s.link == link)
            lanes[link] = max(lanes.get(link, 1) + 1, lanes.get(link, 1) * worst // longest)


class _Builder:
    """Follows every chunk through the ranks, in the global order."""

    def __init__(
        self,
        lowered: Lowered,
        chunk_count: int,
        instances: int,
        lanes: Mapping[tuple[int, int], int],
        most_units: int,
        staged: bool,
    ) -> None:
        self._lowered, self._chunk_count, self._instances = lowered, chunk_count, instances
        self._lanes, self._most_units, self._staged = lanes, most_units, staged
        self._unit_bytes = lowered.buffers.chunks[0].size_bytes
        self._streams: dict[Stream, list[Step]] = defaultdict(list)
        self._scratch = [0] * lowered.rank_count
        self._turn: dict[tuple[int, int], int] = defaultdict(int)
        self._known: dict[Stream, dict[Stream, int]] = defaultdict(dict)

    def build(self) -> Programs:
        ranks = range(self._lowered.rank_count)
        for instance in range(self._instances):
            at = [{c: self._unit("i", o, instance) for c, o in self._lowered.buffers.inputs[r].items()} for r in ranks]
            home = [
                {c: self._unit("o", o, instance) for c, o in self._lowered.buffers.outputs[r].items()} for r in ranks
            ]
            wrote: list[dict[int, Point]] = [{} for _ in ranks]
            self._turn.clear()
            for message in self._lowered.messages:
                self._message(message, instance, at, home, wrote)
            for rank in ranks:
                self._finish(rank, instance, at[rank], home[rank], wrote[rank])
        return Programs(self._streams, self._scratch)

    def _unit(self, buffer: Buffer, offset_bytes: int, instance: int) -> StreamPlace:
        """Instance q has the q-th run of every piece, so that chunks of a piece stay neighbours."""
        piece, part = divmod(offset_bytes // self._unit_bytes, self._chunk_count)
        return StreamPlace(buffer, (piece * self._instances + instance) * self._chunk_count + part)

    def _message(
        self,
        message: Message,
        instance: int,
        at: list[dict[int, StreamPlace]],
        home: list[dict[int, StreamPlace]],
        wrote: list[dict[int, Point]],
    ) -> None:
        source, target = message.source, message.target
        moves = []
        for chunk in message.chunks:
            end = home[target].get(chunk)
            if end is None:
                end = home[target][chunk] = self._slot(target)
            operand = at[target].get(chunk) if message.combines else None
            landing = self._slot(target) if operand is not None and self._staged else None
            moves.append(Move(at[source][chunk], end, operand, landing))
        runs, chunks = list(_runs(moves, self._most_units)), iter(message.chunks)
        for first in range(0, len(runs), MOVES_PER_STEP):
            together = tuple(runs[first : first + MOVES_PER_STEP])
            carried = list(islice(chunks, sum(run.count for run in together)))
            lane = self._lane(source, target)
            sender = Stream("send", source, target, instance, lane)
            self._append(sender, together, (wrote[source].get(c) for c in carried))
            # A copy may overwrite a part that was sent on: the whole that arrives contains it, so it has been read.
            added = [c for c in carried if message.combines and c in at[target]]
            receiver = Stream("receive", target, source, instance, lane)
            point = self._append(receiver, together, (wrote[target].get(c) for c in added))
            for chunk in carried:
                at[target][chunk], wrote[target][chunk] = home[target][chunk], point

    def _finish(
        self,
        rank: int,
        instance: int,
        at: dict[int, StreamPlace],
        home: dict[int, StreamPlace],
        wrote: dict[int, Point],
    ) -> None:
        """Copy what a rank started with and must end with; in form ``gather``, add up."""
        own = self._lowered.buffers.outputs[rank]
        copies = [Move(at[c], home[c]) for c in own if c in at and at[c] != home[c]]
        for run in _runs(copies, self._most_units):
            self._append(Stream("local", rank, rank, instance, self._lane(rank, rank)), (run,), ())
        for total in self._lowered.buffers.sums[rank]:
            end = self._unit("o", total.offset, instance)
            moves = [Move(at[c], end, end if n else None) for n, c in enumerate(total.chunks)]
            stream = Stream("local", rank, rank, instance, self._lane(rank, rank))
            self._append(stream, tuple(moves), (wrote.get(c) for c in total.chunks))

    def _slot(self, rank: int) -> StreamPlace:
        self._scratch[rank] += 1
        return StreamPlace("s", self._scratch[rank] - 1)

    def _lane(self, source: int, target: int) -> int:
        """Messages of a link take turns, which keeps them in the order of time."""
        turn = self._turn[source, target]
        self._turn[source, target] += 1
        return turn % self._lanes.get((source, target), 1)

    def _append(self, stream: Stream, moves: tuple[Move, ...], needs: Iterable[Point | None]) -> Point:
        """Append a step that waits for what its stream does not know to be done yet."""
        latest: dict[Stream, int] = {}
        for other, step in (point for point in needs if point is not None):
            if other != stream and step > max(latest.get(other, -1), self._known[stream].get(other, -1)):
                latest[other] = step
        self._known[stream].update(latest)
        self._streams[stream].append(Step(moves, tuple(latest.items())))
        return stream, len(self._streams[stream]) - 1


def _runs(moves: list[Move], most: int) -> Iterator[Move]:
    run: Move | None = None
    for move in moves:
        if run is not None and run.takes(move, most):
            run = replace(run, count=run.count + move.count)
            continue
        if run is not None:
            yield run
        run = move
    if run is not None:
        yield run
