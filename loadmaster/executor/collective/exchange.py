"""One batch of messages over ``torch.distributed``: posted together, waited for in order, or a peer is named.

What arrives is added up in the global order of messages, in fp32 where the type is narrower, rounded once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from loadmaster.executor.collective.faults import Unanswered, peer_error
from loadmaster.executor.collective.staging import Arrival, Piece, Staged, Step
from loadmaster.models.collective.lowering import Message

# Tags of planned messages begin here, out of the way of a program's own.
FIRST_TAG = 1 << 24
# Between two looks at whether a GPU is done.
GLANCE_S = 0.001

Memory = dict[str, torch.Tensor]
"""A rank's buffers as bytes: input, output, scratch."""


def view(memory: Memory, piece: Piece) -> torch.Tensor:
    """View the bytes of a piece in a rank's buffers."""
    return memory[piece.buffer][piece.offset : piece.offset + piece.size_bytes]


class _Post(NamedTuple):
    message: Message
    sends: bool
    tensor: torch.Tensor

    @property
    def peer(self) -> int:
        return self.message.target if self.sends else self.message.source


class Exchange:
    """Sends and receives of one rank of a group."""

    def __init__(self, group: dist.ProcessGroup, name: str, timeout_s: float, watch: bool | None) -> None:
        """Exchange of a runner; ``name`` is the same on every rank, the rest as in :class:`.engine.Runner`."""
        self.group, self.name, self.timeout_s, self.watch = group, name, timeout_s, watch
        self.rank = group.rank()

    def step(self, number: int, step: Step, memory: Memory) -> list[torch.Tensor]:
        """Do a batch; return where each incoming message landed, staged ones in memory of their own. PeerError: a
        message did not go through in time."""
        device = memory["scratch"].device
        landed, posts = [], []
        for incoming in step.incoming:
            if incoming.direct is None:
                landed.append(torch.empty(incoming.size_bytes, dtype=torch.uint8, device=device))
            else:
                landed.append(view(memory, incoming.direct))
            if incoming.size_bytes:
                posts.append(_Post(incoming.message, False, landed[-1]))
        for outgoing in step.outgoing:
            if outgoing.size_bytes:
                parts = [view(memory, piece) for piece in outgoing.pieces]
                posts.append(_Post(outgoing.message, True, parts[0] if len(parts) == 1 else torch.cat(parts)))
        posts.sort(key=lambda post: post.message.index)
        if posts:
            watched = device.type == "cpu" if self.watch is None else self.watch
            self._do(number, posts, coalesces=device.type != "cpu", watched=watched)
        return landed

    def _do(self, number: int, posts: Sequence[_Post], *, coalesces: bool, watched: bool) -> None:
        begun = time.monotonic()
        works: list[dist.Work] = []
        # Where calls are not coalesced, each is posted on its own: a refusal then names its message.
        bundles = [posts] if coalesces else [[post] for post in posts]
        for bundle in bundles:
            try:
                works += dist.batch_isend_irecv([self._operation(post) for post in bundle])
            except RuntimeError as error:
                self._lose(number, bundle[0], begun, error)
        # What others wait for is posted; receives are waited for first, because they tell who is late.
        waits = list(zip(works, posts if len(works) == len(posts) else [posts[0]] * len(works), strict=True))
        for work, post in sorted(waits, key=lambda pair: pair[1].sends):
            left = timedelta(seconds=max(self.timeout_s - (time.monotonic() - begun), GLANCE_S))
            try:
                if not watched:
                    work.wait()
                elif coalesces:
                    self._watch(work, begun)
                else:
                    work.wait(left)
            except RuntimeError as error:
                self._lose(number, post, begun, error)

    def _operation(self, post: _Post) -> dist.P2POp:
        call = dist.isend if post.sends else dist.irecv
        return dist.P2POp(call, post.tensor, group=self.group, tag=FIRST_TAG + post.message.index, group_peer=post.peer)

    def _watch(self, work: dist.Work, begun: float) -> None:
        """Wait on the CPU for work of a GPU."""
        while not work.is_completed():
            if time.monotonic() - begun > self.timeout_s:
                raise dist.DistBackendError(f"not done after {self.timeout_s} s")
            time.sleep(GLANCE_S)
        work.wait()

    def _lose(self, number: int, post: _Post, begun: float, error: RuntimeError) -> None:
        seconds = time.monotonic() - begun
        lost = Unanswered(number, post.message.index, post.message.chunks, post.peer, post.sends, seconds, str(error))
        raise peer_error(lost, self.rank, self.group, self.name) from error


OPERATORS: dict[object, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}
_NARROW = (torch.bfloat16, torch.float16)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_COMPLEX = (torch.complex64, torch.complex128)
_REAL = (*_NARROW, torch.float32, torch.float64)


def kind_of(op: object) -> object:
    """Return the operator itself, of a ReduceOp or of one of its names."""
    return getattr(op, "op", op)


def averages(op: object) -> bool:
    """Return whether sums are divided by the number of ranks at the end."""
    return kind_of(op) == dist.ReduceOp.AVG


def can_combine(op: object, dtype: torch.dtype) -> bool:
    """Return whether a plan adds up values of that type by that operator."""
    kind = kind_of(op)
    if kind in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT):
        return dtype in (*_REAL, *_WHOLE, *_COMPLEX)
    if kind == dist.ReduceOp.AVG:
        return dtype in (*_REAL, *_COMPLEX)
    return kind in OPERATORS and dtype in (*_REAL, *_WHOLE)


class Sums:
    """The sums under way on one rank in one call."""

    def __init__(self, memory: Memory, dtype: torch.dtype, op: object) -> None:
        self.memory, self.dtype = memory, dtype
        self.wide = torch.float32 if dtype in _NARROW else dtype
        self.operator = OPERATORS.get(kind_of(op), torch.add)
        self.open: dict[int, torch.Tensor] = {}

    def add(self, step: Step, landed: Sequence[torch.Tensor]) -> None:
        """Copy or add up the staged messages of a batch that is over."""
        for arrival in step.arrivals:
            came = landed[arrival.incoming][arrival.offset : arrival.offset + arrival.size_bytes]
            if not arrival.combines:
                assert arrival.result is not None
                copy(view(self.memory, arrival.result), came)
            else:
                self._combine(arrival, came.view(self.dtype))

    def _combine(self, arrival: Arrival, came: torch.Tensor) -> None:
        own = None if arrival.own is None else self._values(arrival.own)
        if own is not None and arrival.result is not None:
            # The only part to come: the operator itself works in fp32 and rounds once.
            self.operator(own, came, out=self._values(arrival.result))
            return
        if own is not None:
            total = self.operator(own.to(self.wide), came)
        elif arrival.chunk in self.open:
            total = self.operator(self.open[arrival.chunk], came)
        else:
            total = came.to(self.wide)
        self.open[arrival.chunk] = total
        if arrival.result is not None:
            self._values(arrival.result).copy_(self.open.pop(arrival.chunk))

    def total(self, home: Piece, pieces: Sequence[Piece]) -> None:
        """Add up pieces in their order, and write the total to its place."""
        total = self._values(pieces[0]).to(self.wide)
        for piece in pieces[1:]:
            total = self.operator(total, self._values(piece))
        self._values(home).copy_(total)

    def _values(self, piece: Piece) -> torch.Tensor:
        return view(self.memory, piece).view(self.dtype)


def bytes_of(tensor: torch.Tensor | None) -> int:
    """Bytes of a tensor; zero where there is none."""
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def flat(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """View a contiguous tensor as bytes; empty where there is none."""
    if tensor is None or not tensor.numel():
        return torch.empty(0, dtype=torch.uint8, device=device)
    return tensor.detach().view(-1).view(torch.uint8)


def copy(home: torch.Tensor, origin: torch.Tensor) -> None:
    """Copy bytes, unless they are there already."""
    if home.data_ptr() != origin.data_ptr():
        home.copy_(origin)


def in_the_way(staged: Staged, memory: Memory) -> bool:
    """Return whether the output overlaps a part of the input that is another chunk's, and would spoil it."""
    shift = memory["output"].data_ptr() - memory["input"].data_ptr()
    input_bytes = memory["input"].numel()
    for offset, size_bytes, origin in staged.origins:
        over = offset + shift
        if over < input_bytes and over + size_bytes > 0 and over != origin:
            return True
    return False
