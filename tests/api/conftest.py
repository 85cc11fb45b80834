"""A service with the fake planner: in this process without workers, or for real on a loopback port."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from loadmaster.api.client import Client
from loadmaster.api.serve import make_server
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.worker.worker import Worker

HERE = Path(__file__).parent


@pytest.fixture
def make_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Settings for a fresh database, with quick looks."""
    # Worker processes must find the fake planner.
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def make(**changes: Any) -> Settings:
        values: dict[str, Any] = {
            "database_url": f"sqlite:///{tmp_path / 'service.db'}",
            "planner": "fake_planner:FakePlanner",
            "workers": 0,
            "poll_s": 0.05,
            "lease_s": 5.0,
        }
        return Settings(**{**values, **changes})

    return make


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """The app without workers."""
    return create_app(make_settings(max_body_bytes=200_000))


@pytest.fixture
async def http(app: FastAPI) -> Any:
    """An HTTP client of the app, in this process. Bugs show as 500, as they would on a wire."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


class RunningService:
    """A uvicorn server in a thread of this process; its workers are real processes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._server = make_server(settings)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    @property
    def server(self) -> uvicorn.Server:
        return self._server

    @property
    def app(self) -> FastAPI:
        app = self._server.config.app
        assert isinstance(app, FastAPI)
        return app

    def stop(self) -> None:
        self.app.state.service.stopping.set()
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def start_service(make_settings: Callable[..., Settings]) -> Iterator[Callable[..., RunningService]]:
    """Starts real services; they end with the test."""
    running: list[RunningService] = []

    def start(**changes: Any) -> RunningService:
        running.append(RunningService(make_settings(port=0, **changes)))
        return running[-1]

    yield start
    for service in running:
        service.stop()


@pytest.fixture
def live(start_service: Callable[..., RunningService]) -> RunningService:
    """A real service with one worker."""
    return start_service(workers=1)


@pytest.fixture
def client(live: RunningService) -> Iterator[Client]:
    """A client of the real service."""
    with Client(live.url) as client:
        yield client


@pytest.fixture
def worker(make_settings: Callable[..., Settings], app: FastAPI) -> Worker:
    """A worker on the database of ``app``, to be driven one job at a time in this process."""
    return Worker(app.state.service.settings)


def wait_until(holds: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Wait for something that comes by itself; returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")
