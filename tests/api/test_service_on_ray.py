"""The engine ``ray``: a cluster of two processors on this machine, a worker that spreads its jobs over it."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_planner import problem
from running_service import RunningService, alive, parent, pids, wait_until

from loadmaster.api.client import Client, PlanHandle
from loadmaster.models.memory.presets import chain

ray = pytest.importorskip("ray", reason="Ray is not installed here (pip install 'loadmaster[ray]')")

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MEGABYTE = 1_000_000
PROCESSORS = 2


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """The cluster that workers of these tests find."""
    with pytest.MonkeyPatch.context() as patch:
        # Its processes must find the fake planner.
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.delenv("RAY_ADDRESS", raising=False)
        context = ray.init(num_cpus=PROCESSORS, include_dashboard=False)
        patch.setenv("RAY_ADDRESS", context.address_info["gcs_address"])
        yield
        ray.shutdown()


@pytest.fixture
def on_ray(start_service: Callable[..., RunningService]) -> Iterator[Client]:
    """A client of a service whose one worker uses the cluster."""
    with Client(start_service(workers=1, engine="ray").url) as client:
        yield client


def test_a_frontier_has_the_plans_of_the_local_engine(start_service: Callable[..., RunningService]) -> None:
    limits = [f"{share}%" for share in range(45, 105, 5)]
    found = []
    for engine in ("local", "ray"):
        service = start_service(workers=1, engine=engine, planner="loadmaster.api.planning:FloorPlanner")
        with Client(service.url) as client:
            frontier = client.frontier(chain(8, MEGABYTE), limits, options={"time_limit_s": 60.0, "gap": 0.0})
            address = frontier.links["self"]
            wait_until(lambda client=client, address=address: client.get(address)["state"] == "succeeded")
            points = client.get(address)["points"]
            found.append([client.get(f"/v1/plans/{point['plan']}/result") for point in points])
        service.stop()
    local, spread = ([stripped(plan) for plan in plans] for plans in found)
    assert len(spread) == len(limits)
    assert spread == local


def stripped(plan: Any) -> Any:
    return plan
