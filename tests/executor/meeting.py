"""Where the ranks of a test meet: a store that the test itself holds, at a port that nobody else can take meanwhile."""

from __future__ import annotations

import torch
import torch.distributed as dist


def meeting_place() -> dist.TCPStore:
    """Held by the process that starts the ranks until they have ended."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def meet(rank: int, ranks: int, port: int) -> None:
    """Join the others, over gloo, with one thread."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
