"""Parameters that a restart of list scheduling may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["tail", "bulk", "rare"]
"""Rule for the offer that a port takes first: ``tail`` the chunk with the longest way still to go; ``bulk`` the message
with the most chunks; ``rare`` the chunk that the fewest ranks around have."""

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Parameters:
    """Parameters of one restart of list scheduling.

    Attributes:
        batch: most chunks of one message between nodes.
        hold: a message between nodes waits until that many chunks are ready, or no more can come.
        local_batch, local_hold: the same within a node.
        taper: a message between nodes carries at most that part of the chunks that may still come; 1: no limit. The
            last messages are then short, and what they bring is spread soon.
        linger: a message waits for chunks that are on their way to its rank and come within that part of what a message
            costs whatever its size.
        noise: share of chance in the order of offers, 0 to 1.
        enter_once: a chunk that goes to every rank enters each island once; otherwise as often as links are free.
        patient: leave a slow link idle where a faster one into the same rank would have the chunk there sooner.
    """

    batch: int = 1
    hold: int = 1
    local_batch: int = 1
    local_hold: int = 1
    taper: float = 1.0
    linger: float = 0.0
    noise: float = 0.0
    mode: Mode = "tail"
    enter_once: bool = True
    patient: bool = True
