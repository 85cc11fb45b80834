"""Scenarios on several ranks: gloo on the CPU, one process a rank, all scenarios of a file in one start of them."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
LIMIT_S = 600

Scenario = Callable[[int], None]


def outcomes(scenarios: Mapping[str, Scenario], folder: Path) -> dict[str, list[str]]:
    """What every rank has to say about every scenario: empty where its assertions held."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.start_processes(_rank, args=(dict(scenarios), port, folder), nprocs=RANKS, join=False)
    deadline = time.monotonic() + LIMIT_S
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks did not come to an end"
    finally:
        for process in context.processes:
            process.kill()
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [one[name] for one in said] for name in scenarios}


def _rank(rank: int, scenarios: Mapping[str, Scenario], port: int, folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    said = {}
    for name, scenario in scenarios.items():
        try:
            scenario(rank)
            said[name] = ""
        except Exception:  # noqa: BLE001, a report of whatever went wrong
            said[name] = traceback.format_exc()
        dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
