"""Scenarios on several ranks: gloo, one process a rank, all scenarios of a world in one start of it."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.executor.meeting import meet, meeting_place

LIMIT_S = 600
IMPORTED = [
    "tests.executor.collective.group_scenarios",
    "tests.executor.collective.probe_scenarios",
    "tests.executor.collective.runner_scenarios",
    "tests.executor.collective.torch_scenarios",
]

Scenario = Callable[[int], None]


def reports(
    scenarios: Mapping[str, Scenario], folder: Path, ranks: int, last: Scenario | None = None
) -> dict[str, list[str]]:
    """What every rank has to say about every scenario: empty where its assertions held.

    ``last`` comes after the others and may end a rank's process: such a rank says nothing about it.
    """
    store = meeting_place()
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
    meet(rank, ranks, port)
    said: dict[str, str] = {}

    def say() -> None:
        (folder / f"{rank}.json").write_text(json.dumps(said))

    for name, scenario in scenarios.items():
        (folder / f"{rank}.begun").write_text(name)
        said[name] = _outcome(scenario, rank)
        dist.barrier()
    say()
    if last is not None:
        (folder / f"{rank}.begun").write_text("last")
        said["last"] = _outcome(last, rank)
        say()
        os._exit(0)  # the group is broken by now: no farewells
    dist.destroy_process_group()


def _outcome(scenario: Scenario, rank: int) -> str:
    try:
        scenario(rank)
    except (Exception, pytest.fail.Exception):  # noqa: BLE001, a report of whatever went wrong
        return traceback.format_exc()
    return ""
