"""Diagnosis of a peer that stops answering: which message of which step never came, from whom, and who is the cause.

A rank that waits in vain says so in the group's store, then looks whether the peer it waited for says the same of
another: at the end of that chain is a rank that says nothing. Ranks that only wait are told from the one that died.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from loadmaster.errors import LoadmasterError
from loadmaster.executor.torch_private.distributed import store_of

# How long a rank listens for what others have to say: ranks run out of patience within moments of one another.
LISTEN_S = 5.0


class PeerError(LoadmasterError):
    """A peer did not do its part of a planned collective; the runner that says so is of no use from then on.

    Attributes:
        step: batch of messages that did not come to an end.
        message, chunks: index in the algorithm's global order, and what it carries.
        peer, culprit: rank at the other end; rank at the end of the chain of those that wait, else ``peer``.
    """

    def __init__(self, message: str, step: int, index: int, chunks: Sequence[int], peer: int, culprit: int) -> None:
        self.step, self.message, self.chunks = step, index, tuple(chunks)
        self.peer, self.culprit = peer, culprit
        super().__init__(message)

    def __reduce__(self) -> tuple[type[PeerError], tuple[str, int, int, tuple[int, ...], int, int]]:
        return (PeerError, (str(self), self.step, self.message, self.chunks, self.peer, self.culprit))


@dataclass(frozen=True)
class Unanswered:
    """A message that this rank was to send (``sends``) or receive, and waited for in vain; ``why``, by the backend."""

    step: int
    message: int
    chunks: tuple[int, ...]
    peer: int
    sends: bool
    seconds: float
    why: str


def peer_error(lost: Unanswered, rank: int, group: dist.ProcessGroup, name: str) -> PeerError:
    """Tell the others what was lost, hear what they say, and make the error that states both."""
    chain = _chain(lost, rank, group, name)
    way = "to" if lost.sends else "from"
    chunks = ", ".join(str(chunk) for chunk in lost.chunks[:8]) + (", ..." if len(lost.chunks) > 8 else "")
    words = (
        f"Rank {rank} gave up after {lost.seconds:.1f} s in step {lost.step}: message {lost.message} (chunk {chunks}) "
        f"{way} rank {lost.peer} did not go through."
    )
    for waiting, told in itertools.pairwise(chain):
        words += f" Rank {waiting} itself waits for rank {told}."
    if chain[-1] == rank or chain[-1] in chain[:-1]:
        words += " They wait for one another: the ranks do not run the same calls."
    else:
        words += f" Rank {chain[-1]} does not answer: see whether its process lives."
    words += f" The backend says: {lost.why.strip().splitlines()[0][:300] if lost.why.strip() else 'nothing'}"
    return PeerError(words, lost.step, lost.message, lost.chunks, lost.peer, chain[-1])


def _chain(lost: Unanswered, rank: int, group: dist.ProcessGroup, name: str) -> list[int]:
    """Chain of ranks: the peer, whom it waits for, and so on, to the first that says nothing or was met before."""
    chain = [lost.peer]
    try:
        store = store_of(group)
        store.set(_key(name, rank), json.dumps(lost.peer))
        until = time.monotonic() + LISTEN_S
        while chain[-1] != rank and chain[-1] not in chain[:-1]:
            key = _key(name, chain[-1])
            while not store.check([key]):
                if time.monotonic() > until:
                    return chain
                time.sleep(0.05)
            chain.append(int(json.loads(store.get(key))))
    except RuntimeError:
        # The store lives on one of the ranks, and may have died with it.
        return chain
    return chain


def _key(name: str, rank: int) -> str:
    return f"loadmaster/waits/{name}/{rank}"
