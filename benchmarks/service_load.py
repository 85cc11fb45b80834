"""Service under load while two solves run: how long answers take, event streams, cancels, and the server's memory.

One server with two workers on a fresh SQLite database; requests come from this process, on the same cores, at a fixed
rate whatever the answers take. Latencies count from when a request was due. Requests at a rate are sent with little
work of our own; those that wait for one another by httpx, as users do.

    python -m benchmarks.service_load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks import record
from benchmarks.plain_http import Answer, Connections
from loadmaster.models.memory.presets import chain, example

MEBIBYTE = 1 << 20
# A solve that would take hours: it is there to take its core.
_ENDLESS = {"limit": "35%", "gap": 0.0, "time_limit_s": 3600.0}
_START_WITHIN_S = 120.0


@contextmanager
def running_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a server with two workers within the block; yields its address and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "loadmaster.api.cli", "serve", "--port", str(port), "--workers", "2"]
    command += ["--database-url", f"sqlite:///{folder}/service.db"]
    environment = {**os.environ, "LOADMASTER_LOG_LEVEL": "error", "LOADMASTER_MAX_QUEUED_JOBS": "1000000"}
    server = subprocess.Popen(command, env=environment)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _START_WITHIN_S
    try:
        while not _is_ready(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server does not start")
            time.sleep(0.1)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def resident_mib(pid: int) -> float:
    """Memory of one process in MiB, as the kernel counts it."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def shares(seconds: list[float]) -> dict[str, Any]:
    """Percentiles of seconds, in milliseconds."""
    ordered = sorted(seconds)
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    found = {name: round(1e3 * ordered[int(share * (len(ordered) - 1))], 1) for name, share in at.items()}
    return {"count": len(ordered), **found}


async def at_rate(send: Callable[[int], Awaitable[Answer]], rate: float, seconds: float) -> dict[str, Any]:
    """Send requests that are due one after the other; measure their answers from then on."""
    taken: list[float] = []
    refused = 0

    async def one(number: int, due: float) -> None:
        nonlocal refused
        answer = await send(number)
        taken.append(time.monotonic() - due)
        refused += answer.status_code >= 400

    began, tasks = time.monotonic(), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*tasks)
    return {"asked_per_s": rate, "refused": refused, **shares(taken)}


async def one_by_one(send: Callable[[int], Awaitable[httpx.Response]], count: int) -> dict[str, Any]:
    """Send requests one by one, each after the answer to the one before."""
    taken = []
    for number in range(count):
        began = time.monotonic()
        (await send(number)).raise_for_status()
        taken.append(time.monotonic() - began)
    return shares(taken)


class Load:
    """Client of the service under load."""

    def __init__(self, http: httpx.AsyncClient, plain: Connections) -> None:
        self._http, self._plain = http, plain

    async def submit_plainly(self, problem: Any, options: dict[str, Any]) -> Answer:
        return await self._plain.post("/v1/plans", json.dumps({"problem": problem, "options": options}).encode())

    async def submit(self, problem: Any, options: dict[str, Any]) -> httpx.Response:
        return await self._http.post("/v1/plans", json={"problem": problem, "options": options})

    async def until(self, plan_id: str, states: tuple[str, ...]) -> None:
        while (await self._http.get(f"/v1/plans/{plan_id}")).json()["state"] not in states:
            await asyncio.sleep(0.02)

    async def start_endless(self, seed: int, *, with_plan: bool = True) -> str:
        """Start a solve that does not end by itself; return once it has a plan, or once it runs."""
        answer = await self.submit(example("resnet50-b184-recompute"), {**_ENDLESS, "seed": seed})
        answer.raise_for_status()
        plan_id = str(answer.json()["id"])
        await self.until(plan_id, ("running",))
        while with_plan and (await self._http.get(f"/v1/plans/{plan_id}")).json()["objective"] is None:
            await asyncio.sleep(0.02)
        return plan_id

    async def cancel(self, plan_id: str) -> float:
        """Cancel a running plan; return the seconds until it is final."""
        began = time.monotonic()
        (await self._http.post(f"/v1/plans/{plan_id}:cancel")).raise_for_status()
        await self.until(plan_id, ("cancelled", "succeeded", "failed"))
        return time.monotonic() - began

    async def hold_streams(self, plan_id: str, count: int, seconds: float) -> dict[str, Any]:
        """Hold event streams of one running plan, and measure how long a look at it takes meanwhile."""
        opened = broken = 0
        deadline = time.monotonic() + seconds

        async def hold() -> None:
            nonlocal opened, broken
            try:
                async with self._http.stream("GET", f"/v1/plans/{plan_id}/events", timeout=60) as answer:
                    opened += answer.status_code == 200
                    async for _ in answer.aiter_bytes():
                        if time.monotonic() > deadline:
                            return
            except httpx.HTTPError:
                broken += 1

        streams = [asyncio.create_task(hold()) for _ in range(count)]
        reads = await at_rate(lambda _: self._plain.get(f"/v1/plans/{plan_id}"), 20.0, seconds)
        await asyncio.wait(streams, timeout=60)
        return {"streams": count, "seconds": seconds, "opened": opened, "broken": broken, "reads_meanwhile": reads}


async def measured(url: str, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all figures, one after the other."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        plain = Connections(url)
        load, small = Load(http, plain), chain(6, MEBIBYTE)
        found: dict[str, Any] = {"idle_server_mib": resident_mib(pid)}
        solved = (await load.submit(small, {"limit": 6 * MEBIBYTE})).json()["id"]
        await load.until(solved, ("succeeded",))
        found["cached_plan"] = await one_by_one(lambda _: load.submit(small, {"limit": 6 * MEBIBYTE}), 200)
        for name, with_plan in {"cancel_with_a_plan": True, "cancel_before_any_plan": False}.items():
            seeds = range(1000 * (1 + with_plan), 1000 * (1 + with_plan) + options.cancels)
            cancels = [await load.cancel(await load.start_endless(seed, with_plan=with_plan)) for seed in seeds]
            found[name] = shares(cancels)
        solves = [await load.start_endless(seed) for seed in range(2)]
        path = f"/v1/plans/{solves[0]}"
        rate, seconds = options.rate, options.seconds
        found["submit"] = await at_rate(
            lambda n: load.submit_plainly(small, {"limit": 6 * MEBIBYTE + n + 1}), rate, seconds
        )
        found["read"] = await at_rate(lambda _: plain.get(path), rate, seconds)
        found["event_streams"] = await load.hold_streams(solves[0], options.streams, options.stream_seconds)
        before = resident_mib(pid)
        await at_rate(lambda _: plain.get(path), rate, options.requests / rate)
        found["memory_of_the_server"] = {
            "requests": options.requests,
            "before_mib": before,
            "after_mib": resident_mib(pid),
        }
        for plan_id in solves:
            await load.cancel(plan_id)
        plain.close()
    return found


def main() -> int:
    """Measure, record and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of submissions, and of reads")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--stream-seconds", type=float, default=60.0)
    parser.add_argument("--cancels", type=int, default=20)
    parser.add_argument("--requests", type=int, default=10_000, help="over which memory should not grow")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as (url, pid):
        found = asyncio.run(measured(url, pid, options))
    versions = record.versions("fastapi", "uvicorn", "sqlalchemy", "httpx")
    asked = vars(options)
    path = record.write(
        "service_load", {"versions": versions, "load_average_before": load_before, "asked": asked, **found}
    )
    print(json.dumps(found, indent=2))
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
