"""Timed transfers between ranks, over ``torch.distributed`` point-to-point calls.

A sender's clock runs until it hears from the receiver, so that no two clocks need agree. Where the receiver sends back
what it got, half of the time is one way's; where it only answers with a few bytes, the answer is in the time, which
does no harm to the comparison of large transfers. What is timed is what plans run on: the software's time is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

Pair = tuple[int, int]
Call = Callable[..., dist.Work | None]

ANSWER_BYTES = 8


@dataclass(frozen=True)
class TransferBatch:
    """Transfers that go at once, each of some messages one after another, or of one as large.

    Attributes:
        pairs: (from, to).
        echo: the receiver sends back as much as it got.
    """

    pairs: tuple[Pair, ...]
    size_bytes: int
    count: int = 1
    merged: bool = False
    echo: bool = False


class TransferTimer:
    """Times batches of transfers; every rank of the group makes one and asks for the same batches in the same order."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, repeats: int) -> None:
        """Make a timer that counts the least time of ``repeats`` turns."""
        self.group, self.device, self.repeats = group, device, repeats
        self.rank, self.size = group.rank(), group.size()

    def seconds(self, batches: Sequence[TransferBatch]) -> list[dict[Pair, float]]:
        """Time each transfer of each batch, seconds one way; the result is the same on every rank."""
        mine: list[dict[Pair, float]] = []
        for batch in batches:
            least: dict[Pair, float] = {}
            data = self._buffers(batch)
            answers = data
            if not batch.echo:
                answers = {pair: [t.new_zeros(ANSWER_BYTES) for t in own[:1]] for pair, own in data.items()}
            # One more than counted: the first brings up connections.
            for turn in range(self.repeats + 1):
                dist.barrier(group=self.group)
                for pair, found in self._once(batch, data, answers).items():
                    if turn:
                        least[pair] = min(found, least.get(pair, found))
            mine.append(least)
        said: list[list[dict[Pair, float]]] = [[] for _ in range(self.size)]
        dist.all_gather_object(said, mine, group=self.group)
        return [{pair: found for of_rank in said for pair, found in of_rank[k].items()} for k in range(len(batches))]

    def _buffers(self, batch: TransferBatch) -> dict[Pair, list[torch.Tensor]]:
        """Make the messages of each transfer that this rank has a part in."""
        messages, size = (1, batch.count * batch.size_bytes) if batch.merged else (batch.count, batch.size_bytes)
        return {
            pair: [torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(messages)]
            for pair in batch.pairs
            if self.rank in pair
        }

    def _once(
        self, batch: TransferBatch, data: dict[Pair, list[torch.Tensor]], answers: dict[Pair, list[torch.Tensor]]
    ) -> dict[Pair, float]:
        """Do a batch once; return the time of each transfer that this rank sends, as it sees it."""
        sent = [pair for pair in batch.pairs if pair[0] == self.rank]
        received = [pair for pair in batch.pairs if pair[1] == self.rank]
        begun = time.perf_counter()
        self._do(
            [
                *((dist.irecv, t, pair[0]) for pair in received for t in data[pair]),
                *((dist.isend, t, pair[1]) for pair in sent for t in data[pair]),
            ]
        )
        self._do(
            [
                *((dist.isend, t, pair[0]) for pair in received for t in answers[pair]),
                *((dist.irecv, t, pair[1]) for pair in sent for t in answers[pair]),
            ]
        )
        took = time.perf_counter() - begun
        return dict.fromkeys(sent, took / 2 if batch.echo else took)

    def _do(self, calls: Sequence[tuple[Call, torch.Tensor, int]]) -> None:
        if not calls:
            return
        operations = [dist.P2POp(call, t, group=self.group, group_peer=peer) for call, t, peer in calls]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
