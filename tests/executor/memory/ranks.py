"""Scenarios on several ranks: gloo on the CPU, one process a rank, all scenarios of a file in one start of them."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

from tests.executor.meeting import meet, meeting_place

RANKS = 2
LIMIT_S = 600

Scenario = Callable[[int], None]


def outcomes(scenarios: Mapping[str, Scenario], folder: Path) -> dict[str, list[str]]:
    """What every rank has to say about every scenario: empty where its assertions held."""
    store = meeting_place()
    context = mp.start_processes(_rank, args=(dict(scenarios), store.port, folder), nprocs=RANKS, join=False)
    deadline = time.monotonic() + LIMIT_S
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks did not come to an end"
    finally:
        for process in context.processes:
            process.kill()
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: [one.get(name, "not run: one before it failed") for one in said] for name in scenarios}


def _rank(rank: int, scenarios: Mapping[str, Scenario], port: int, folder: Path) -> None:
    """Ends at the first failure: a rank that waits for this one then fails, too, instead of waiting on."""
    meet(rank, RANKS, port)
    said = {}
    for name, scenario in scenarios.items():
        try:
            scenario(rank)
            dist.barrier()
            said[name] = ""
        except Exception:  # noqa: BLE001, a report of whatever went wrong
            said[name] = traceback.format_exc()
            break
    (folder / f"{rank}.json").write_text(json.dumps(said))
    os._exit(0)  # where a rank failed the group is broken: no farewells
