"""One batch of messages over ``torch.distributed``: posted together, waited for in order, or a peer is named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from loadmaster.executor.collective.faults import Unanswered, peer_error
from loadmaster.executor.collective.staging import Piece, Step
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
        """Exchange of a runner, whose ``name`` is the same on every rank. The rest is as in
        :class:`loadmaster.executor.collective.reference.Runner`.
        """
        self.group, self.name, self.timeout_s, self.watch = group, name, timeout_s, watch
        self.rank = group.rank()

    def step(self, number: int, step: Step, memory: Memory) -> list[torch.Tensor]:
        """Do a batch; return where each incoming message landed, staged ones in memory of their own.

        Raises:
            PeerError: a message did not go through in time.
        """
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
