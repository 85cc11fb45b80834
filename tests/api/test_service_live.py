"""The whole path, for real: HTTP on a loopback port, worker processes, job processes, and what is done to them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_planner import OPTIMUM, problem
from running_service import HANG_S, RunningService, alive, parent, pids, wait_until

from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.documents import PlanResource
from loadmaster.api.errors import TooLargeError, UnknownPlanError, WaitTimeoutError
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database
from loadmaster.api.store.jobs import Jobs
from loadmaster.errors import CancelledError, InputError, LimitReachedError, SolverError

pytestmark = pytest.mark.slow  # servers and workers are started


def with_incumbent(handle: Any) -> Callable[[], PlanResource | None]:
    """A question that is answered once the plan runs and has an incumbent."""

    def ask() -> PlanResource | None:
        state: PlanResource = handle.state()
        return state if state.state == "running" and state.objective is not None else None

    return ask


def test_submit_solve_result(client: Client) -> None:
    handle = client.submit(problem(name="sync"), labels={"team": "a"})
    plan = handle.document(timeout_s=HANG_S)
    assert plan["objective"] == OPTIMUM
    state = handle.state()
    assert (state.state, state.gap, state.labels, state.attempts) == ("succeeded", 0.0, {"team": "a"}, 1)
    assert "two incumbents follow" in handle.log()
    assert [event.type for event in handle.events()][-2:] == ["state", "done"]
    assert [plan.id for plan in client.list(label=("team", "a"))] == [handle.id]
    handle.purge()
    with pytest.raises(UnknownPlanError):
        handle.state()


def test_errors_arrive_as_they_were_raised(client: Client) -> None:
    with pytest.raises(InputError) as refusal:
        client.submit(problem("unheard of"))
    assert (refusal.value.field, refusal.value.problem) == ("problem.behaviour", "is unknown")
    assert "found 'unheard of'" in str(refusal.value)
    with pytest.raises(SolverError, match="the solver broke"):
        client.submit(problem("solver_error")).result(HANG_S)
    with pytest.raises(LimitReachedError, match="the limit came"):
        client.submit(problem("limit")).result(HANG_S)
    assert client.dry_run(problem(forward=[1, 2])).sizes == {"forward": 2}


def test_cancel_keeps_the_incumbent(client: Client) -> None:
    handle = client.submit(problem("slow"))
    wait_until(with_incumbent(handle))
    with pytest.raises(WaitTimeoutError):
        handle.wait(0.1)
    assert handle.cancel().cancel_requested
    assert handle.wait(HANG_S).state == "cancelled"
    assert handle.document()["objective"] == pytest.approx(1.1 * OPTIMUM)
    assert handle.cancel().state == "cancelled"


def test_cancel_without_an_incumbent_has_no_plan(client: Client, tmp_path: Path) -> None:
    handle = client.submit(problem("nothing", marker=str(tmp_path / "m")))
    wait_until(lambda: pids(tmp_path / "m"))
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.document(timeout_s=HANG_S)


def test_a_job_that_does_not_listen_is_killed(client: Client, tmp_path: Path) -> None:
    handle = client.submit(problem("deaf", marker=str(tmp_path / "m")))
    wait_until(with_incumbent(handle))
    handle.cancel()
    assert handle.wait(HANG_S).state == "cancelled"
    (pid,) = pids(tmp_path / "m")
    wait_until(lambda: not alive(pid))


def test_a_killed_worker_is_replaced_and_its_job_runs_again(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "m"
    handle = client.submit(problem("slow", seconds=1.5, marker=str(marker)))
    wait_until(with_incumbent(handle))
    (first,) = pids(marker)
    os.kill(parent(first), signal.SIGKILL)
    done = handle.wait(HANG_S)
    assert (done.state, done.attempts, len(pids(marker))) == ("succeeded", 2, 2)
    wait_until(lambda: not alive(first))
    states = [event.data["state"] for event in handle.events() if event.type == "state"]
    assert states == ["queued", "running", "queued", "running", "succeeded"]


def test_a_killed_workers_job_does_not_wait_for_its_lease(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    """The supervisor knows at once what a lease of an hour would tell after an hour."""
    marker = tmp_path / "m"
    with Client(start_service(workers=1, lease_s=3600.0).url) as client:
        handle = client.submit(problem("slow", seconds=0.5, marker=str(marker)))
        wait_until(lambda: pids(marker))
        os.kill(parent(pids(marker)[0]), signal.SIGKILL)
        assert handle.wait(HANG_S).attempts == 2


def test_the_folder_that_a_server_starts_in_is_not_on_its_workers_path(
    start_service: Callable[..., RunningService], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    with Client(start_service(workers=1).url) as client:
        assert client.submit(problem()).wait(HANG_S).state == "succeeded"
    assert not (tmp_path / "ran").exists()


def test_two_killed_workers_are_a_failure_with_a_reason(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "m"
    handle = client.submit(problem("slow", marker=str(marker)))
    for attempt in (1, 2):
        wait_until(lambda n=attempt: len(pids(marker)) == n)
        os.kill(parent(pids(marker)[-1]), signal.SIGKILL)
    with pytest.raises(SolverError, match="started 2 times"):
        handle.document(timeout_s=HANG_S)


def test_a_stopped_server_hands_its_job_back_and_loses_nothing(
    start_service: Callable[..., RunningService], tmp_path: Path
) -> None:
    marker = tmp_path / "m"
    first = start_service(workers=1)
    with Client(first.url) as client:
        slow = client.submit(problem("slow", seconds=1.0, marker=str(marker)))
        queued = client.submit(problem(name="behind it"))
        wait_until(lambda: pids(marker))
    first.stop()
    assert not any(alive(pid) for pid in pids(marker))
    second = start_service(workers=1)
    with Client(second.url) as client:
        done = client.plan(slow.id).wait(HANG_S)
        assert (done.state, done.attempts) == ("succeeded", 1)
        assert client.plan(queued.id).wait(HANG_S).state == "succeeded"


def test_a_worker_alone_ends_in_good_order(make_settings: Callable[..., Settings], tmp_path: Path) -> None:
    settings = make_settings()
    command = [sys.executable, "-m", "loadmaster.api.worker"]
    worker = subprocess.Popen(command, env={**os.environ, **settings.to_environment()}, stderr=subprocess.PIPE)
    assert worker.stderr is not None
    while b"is ready" not in (line := worker.stderr.readline()):
        assert line
    worker.send_signal(signal.SIGTERM)
    _, noise = worker.communicate(timeout=HANG_S)
    assert (worker.returncode, b"Traceback" in noise) == (0, False)


def test_ready_and_metrics_follow_the_workers(start_service: Callable[..., RunningService]) -> None:
    service = start_service(workers=1)
    with httpx.Client(base_url=service.url) as http, Client(service.url) as client:
        wait_until(lambda: http.get("/readyz").status_code == 200)
        client.submit(problem()).wait(HANG_S)
        text = http.get("/metrics").text
        for line in (
            'loadmaster_jobs{state="succeeded"} 1.0',
            "loadmaster_queue_depth 0.0",
            "loadmaster_workers 1.0",
            'loadmaster_solve_seconds_bucket{le="+Inf"} 1.0',
            'loadmaster_gap_at_stop_bucket{le="0"} 1.0',
        ):
            assert line in text
        service.app.state.service.stopping.set()
        assert http.get("/readyz").status_code == 503
        assert http.get("/livez").status_code == 200


def test_a_server_whose_workers_cannot_start_is_not_ready(start_service: Callable[..., RunningService]) -> None:
    service = start_service(workers=1)
    service.app.state.service.queue.gone("nobody")
    # Kill each worker as it comes: what is left is a server without any.
    with httpx.Client(base_url=service.url) as http:
        wait_until(lambda: http.get("/readyz").status_code == 200)
        supervisor = service.app.state.supervisor

        def unready() -> bool:
            for pid in supervisor.pids:
                os.kill(pid, signal.SIGKILL)
            return http.get("/readyz").json()["checks"]["workers"] == "none alive"

        wait_until(unready)
        wait_until(lambda: http.get("/readyz").status_code == 200)


async def test_the_async_client_is_a_twin(live: RunningService) -> None:
    async with AsyncClient(live.url) as client:
        handle = await client.submit(problem(name="async"), labels={"team": "b"})
        types = [event.type async for event in handle.events()]
        assert types[-1] == "done"
        assert (await handle.document(timeout_s=HANG_S))["objective"] == OPTIMUM
        assert (await handle.state()).state == "succeeded"
        assert "two incumbents" in await handle.log()
        assert [plan.id async for plan in client.list(label=("team", "b"))] == [handle.id]
        frontier = await client.frontier(problem(name="f"), [2, 1], timeout_s=HANG_S)
        assert [(p.budget_bytes, p.objective) for p in frontier.points] == [(1, OPTIMUM), (2, OPTIMUM)]
        slow = await client.submit(problem("slow"))
        with pytest.raises(WaitTimeoutError):
            await slow.wait(0.1)
        await slow.cancel()
        assert (await slow.wait(HANG_S)).state == "cancelled"
        with pytest.raises(InputError):
            await client.submit(problem("unheard of"))
        with pytest.raises(SolverError):
            await (await client.submit(problem("solver_error"))).result(HANG_S)
        await handle.purge()
        with pytest.raises(UnknownPlanError):
            await handle.state()
        assert (await client.get("/v1/solvers"))["solvers"]


async def test_many_watchers_see_the_same_events(live: RunningService) -> None:
    async with AsyncClient(live.url) as client:
        handle = await client.submit(problem("slow", seconds=0.5))

        async def watch() -> list[Any]:
            return [event async for event in handle.events()]

        stories = await asyncio.gather(*(watch() for _ in range(5)))
        assert all(story == stories[0] for story in stories)


def test_the_frontier_waits_for_all_points(client: Client) -> None:
    frontier = client.frontier(problem(worse_by={"2": 5.0}), [1, 2, 3], {"gap": 0.5}, timeout_s=HANG_S)
    assert frontier.state == "succeeded"
    assert [point.objective for point in frontier.points] == [OPTIMUM] * 3


SERVE = """
from loadmaster.api.serve import serve
from loadmaster.api.settings import Settings
serve(Settings.from_environment())
"""


def address_of(server: subprocess.Popen[bytes]) -> str:
    """Where a server that was left to choose its port says that it listens."""
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(rb"running on (http://[\d.:]+)", line)
        if found is not None:
            return found[1].decode()
    raise AssertionError("it ended before it listened")


def descendants(pid: int) -> list[int]:
    """Processes below a process."""
    parents = {int(entry.name): parent(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    below = [child for child, above in parents.items() if above == pid]
    return below + [further for child in below for further in descendants(child)]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_leaves_no_process_behind(
    make_settings: Callable[..., Settings], tmp_path: Path, end: signal.Signals
) -> None:
    environment = {**os.environ, **make_settings(workers=1, port=0).to_environment()}
    server = subprocess.Popen([sys.executable, "-c", SERVE], env=environment, stderr=subprocess.PIPE)
    try:
        with Client(address_of(server)) as client:
            handle = client.submit(problem("slow", marker=str(tmp_path / "m")))
            # A stream that is open must not keep the server from ending.
            events = handle.events()
            while next(events).type != "incumbent":
                pass
            below = descendants(server.pid)
            assert set(pids(tmp_path / "m")) <= set(below)
            server.send_signal(end)
            _, noise = server.communicate(timeout=HANG_S)
    finally:
        server.kill()
    wait_until(lambda: not any(alive(pid) for pid in below))
    if end is signal.SIGTERM:
        assert b"Traceback" not in noise, noise.decode()
    database = Database(make_settings().database_url)
    job = Jobs(database, 1000).get(handle.id)
    assert job is not None
    assert (job.state, job.attempts) == ("queued", 0)


def test_a_body_that_is_too_large_is_refused_while_it_is_sent(start_service: Callable[..., RunningService]) -> None:
    service = start_service(max_body_bytes=100_000)
    with Client(service.url) as client, pytest.raises(TooLargeError):
        client.submit(problem(padding="x" * 5_000_000))
