"""Scenarios on several ranks: gloo, one process a rank, all scenarios of a world in one start of it."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT_S = 600
IMPORTED = [
    "tests.executor.collective.group_scenarios",
    "tests.executor.collective.probe_scenarios",
    "tests.executor.collective.runner_scenarios",
    "tests.executor.collective.torch_scenarios",
    "tests.executor.partition.module_scenarios",
    "tests.executor.partition.recipe_scenarios",
    "tests.executor.partition.step_scenarios",
]

Scenario = Callable[[int], None]


_alone: list[dist.ProcessGroup] = []


def join_alone() -> None:
    """Make a group of this process alone.

    It is held here until the process ends. A thread of gloo's may be the last to hold a DDP, and with it the group:
    it would end the group from within, wait for itself, and keep Python's lock meanwhile.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _alone.append(dist.group.WORLD)


def reports(
    scenarios: Mapping[str, Scenario], folder: Path, ranks: int, last: Scenario | None = None
) -> dict[str, list[str]]:
    """What every rank has to say about every scenario: empty where its assertions held.

    A rank ends at its first failure, so that a rank that waits for it fails, too, instead of waiting on. ``last`` comes
    after the others and may end a rank's process. Of what did not come to an end a rank says "nothing".
    """
    # Held here, at a port that nobody else can take before the ranks are there.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Imports take longer than scenarios do: a process of its own has them done, and ranks of all worlds are its forks.
    mp.get_context("forkserver").set_forkserver_preload(IMPORTED)
    context = mp.start_processes(
        _rank,
        args=(dict(scenarios), last, store.port, folder, ranks),
        nprocs=ranks,
        join=False,
        start_method="forkserver",
    )
    deadline = time.monotonic() + LIMIT_S
    try:
        while any(process.is_alive() for process in context.processes):
            assert time.monotonic() < deadline, f"the ranks did not come to an end: {_begun(folder)}"
            time.sleep(0.1)
    finally:
        for process in context.processes:
            process.kill()
    assert len(list(folder.glob("*.json"))) == ranks, f"ranks died: {_begun(folder)}"
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    names = [*scenarios, *(["last"] if last else [])]
    return {name: [one.get(name, "nothing") for one in said] for name in names}


def _begun(folder: Path) -> dict[str, str]:
    """What every rank that has begun did last, of those that said something."""
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.begun"))}


def _rank(
    rank: int, scenarios: Mapping[str, Scenario], last: Scenario | None, port: int, folder: Path, ranks: int
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    said: dict[str, str] = {}
    for name, scenario in [*scenarios.items(), *([("last", last)] if last else [])]:
        (folder / f"{rank}.begun").write_text(name)
        try:
            scenario(rank)
            if scenario is not last:
                dist.barrier()
            said[name] = ""
        except (Exception, pytest.fail.Exception):  # noqa: BLE001, a report of whatever went wrong
            said[name] = traceback.format_exc()
            break
        finally:
            (folder / f"{rank}.json").write_text(json.dumps(said))
    os._exit(0)  # the group may be broken by now: no farewells
