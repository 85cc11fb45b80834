"""The engine ``ray``: a cluster of two processors on this machine, a worker that spreads its jobs over it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_planner import OPTIMUM, problem
from running_service import HANG_S, RunningService, alive, parent, pids, wait_until

from loadmaster.api.cli import doctor, main
from loadmaster.api.client import Client
from loadmaster.api.settings import Settings
from loadmaster.models.memory.presets import chain
from loadmaster.solvers.registry import python_path

pytest.importorskip("ray", reason="Ray is not installed here (pip install '.[ray]')")

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
MEGABYTE = 1_000_000
PROCESSORS = 2


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """The cluster that workers of these tests find."""
    with (
        pytest.MonkeyPatch.context() as patch,
        # Short: sockets in it have names of at most 107 characters.
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
    ):
        address = f"127.0.0.1:{free_port()}"
        # Its processes must find the fake planner.
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("RAY_ADDRESS", address)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--temp-dir", folder]
        command += ["--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}", f"--num-cpus={PROCESSORS}"]
        head = subprocess.Popen([*command, "--include-dashboard=false"], stdin=subprocess.DEVNULL)
        yield
        head.terminate()
        head.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_doctor_joins_the_cluster() -> None:
    found = doctor._ray()
    assert found.ok is True and f"a cluster of {PROCESSORS} processors" in found.found


@pytest.fixture
def on_ray(start_service: Callable[..., RunningService]) -> Iterator[Client]:
    """A client of a service whose one worker uses the cluster."""
    with Client(start_service(workers=1, engine="ray").url) as client:
        yield client


def test_a_frontier_has_the_plans_of_the_local_engine(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    limits = ["45%", "60%", "70%", "85%", "100%"]  # each has a plan of its own, and not all run at once
    found = {}
    for engine in ("local", "ray"):
        # Each with a database of its own: neither may answer with what the other has planned.
        settings = make_settings(planner="loadmaster.api.planning:FloorPlanner", engine=engine, workers=1, port=0)
        service = RunningService(replace(settings, database_url=f"sqlite:///{tmp_path / engine}.db"))
        with Client(service.url) as client:
            frontier = client.frontier(chain(8, MEGABYTE), limits, options={"gap": 0.0}, timeout_s=HANG_S)
            handles = [client.plan(job.id) for job in client.list()]
            assert len(handles) == len(limits)
            assert all(("Ray cluster" in handle.log()) == (engine == "ray") for handle in handles)
            points = [client.plan(point.plan or "").document() for point in frontier.points]
            found[engine] = [untimed(plan) for plan in points]
        service.stop()
    assert len(found["ray"]) == len(limits)
    assert len({plan["objective"] for plan in found["ray"]}) == len(limits)
    assert found["ray"] == found["local"]


def untimed(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan without the times that no two runs have in common."""
    solver = {name: value for name, value in plan["solver"].items() if name != "cpu_seconds"}
    return {**plan, "seconds": None, "solver": solver}


def test_a_cancelled_job_stops_and_keeps_its_plan(on_ray: Client, tmp_path: Path) -> None:
    handle = on_ray.submit(problem("slow", hands_out=True, marker=str(tmp_path / "m")))
    so_far = wait_until(lambda: handle.state().links.get("incumbent"))
    assert on_ray.get(so_far)["stopped_by"] == "nothing"
    handle.cancel()
    assert handle.wait(HANG_S).state == "cancelled"
    assert handle.document()["objective"] == pytest.approx(1.1 * OPTIMUM)
    assert "two incumbents follow" in handle.log()
    assert [event.type for event in handle.events()].count("incumbent") == 2
    (pid,) = pids(tmp_path / "m")
    wait_until(lambda: not alive(pid))


def test_a_cancelled_job_that_does_not_listen_is_ended_with_all_it_started(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    with Client(start_service(workers=1, engine="ray", cancel_grace_s=0.1).url) as client:
        handle = client.submit(problem("forking", marker=str(tmp_path / "m")))
        wait_until(lambda: len(pids(tmp_path / "m")) == 2)
        handle.cancel()
        assert handle.wait(HANG_S).state == "cancelled"
    for pid in pids(tmp_path / "m"):
        wait_until(lambda pid=pid: not alive(pid))


def test_a_job_whose_ray_worker_is_killed_is_tried_again(on_ray: Client, tmp_path: Path) -> None:
    handle = on_ray.submit(problem("slow", marker=str(tmp_path / "m")))
    (first,) = wait_until(lambda: pids(tmp_path / "m"))
    os.kill(parent(first), signal.SIGKILL)
    wait_until(lambda: len(pids(tmp_path / "m")) == 2)
    wait_until(lambda: not alive(first))
    handle.cancel()
    state = handle.wait(HANG_S)
    assert (state.state, state.attempts) == ("cancelled", 2)
    reasons = [event.data.get("reason", "") for event in handle.events()]
    assert any("Ray worker" in reason for reason in reasons), reasons


def test_a_job_that_crashes_is_tried_again(on_ray: Client, tmp_path: Path) -> None:
    state = on_ray.submit(problem("crash_once", marker=str(tmp_path / "m"))).wait(HANG_S)
    assert (state.state, state.attempts) == ("succeeded", 2)


def test_jobs_run_side_by_side_and_one_that_waits_for_a_place_can_be_cancelled(on_ray: Client, tmp_path: Path) -> None:
    handles = [on_ray.submit(problem("slow", name=str(n), marker=str(tmp_path / "m"))) for n in range(PROCESSORS + 2)]
    *running, waiting, queued = handles
    wait_until(lambda: len(pids(tmp_path / "m")) == PROCESSORS)
    wait_until(lambda: waiting.state().state == "running")
    assert queued.state().state == "queued"
    waiting.cancel()
    assert waiting.wait(HANG_S).state == "cancelled"
    queued.cancel()
    assert len(pids(tmp_path / "m")) == PROCESSORS
    for handle in running:
        handle.cancel()
        assert handle.wait(HANG_S).state == "cancelled"


def test_jobs_of_a_worker_that_is_killed_end_and_are_tried_again(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    service = start_service(workers=1, engine="ray")
    with Client(service.url) as client:
        handle = client.submit(problem("slow", marker=str(tmp_path / "m")))
        (first,) = wait_until(lambda: pids(tmp_path / "m"))
        (worker,) = service.app.state.supervisor.pids
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not alive(first))
        wait_until(lambda: len(pids(tmp_path / "m")) == 2)
        handle.cancel()
        state = handle.wait(HANG_S)
        assert (state.state, state.attempts) == ("cancelled", 2)


def test_a_worker_that_finds_no_cluster_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance. Please specify")

    monkeypatch.setattr("ray.init", init)
    assert main(["worker", "--engine", "ray", "--database-url", database_url]) == 2
    said = capsys.readouterr().err
    assert "Could not find any running Ray instance" in said
    assert "ray start --head" in said


def test_jobs_of_a_worker_that_is_stopped_go_back(
    start_service: Callable[..., RunningService], make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    service = start_service()
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "loadmaster.api.worker"],
        env={**os.environ, **make_settings(engine="ray").to_environment(), "PYTHONPATH": python_path()},
    )
    with Client(service.url) as client:
        handles = [client.submit(problem("slow", name=str(n), marker=str(tmp_path / "m"))) for n in range(PROCESSORS)]
        wait_until(lambda: len(pids(tmp_path / "m")) == PROCESSORS)
        worker.terminate()
        assert worker.wait() == 0
        assert [(handle.state().state, handle.state().attempts) for handle in handles] == [("queued", 0)] * PROCESSORS
    for pid in pids(tmp_path / "m"):
        wait_until(lambda pid=pid: not alive(pid))
