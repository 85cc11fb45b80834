"""A service with the fake planner: in this process without workers, or for real on a loopback port."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from private_postgresql import PrivatePostgresql, copied, programs
from running_service import RunningService
from thread_job import ThreadJob

from loadmaster.api.client import Client
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import Database
from loadmaster.api.worker.worker import Worker

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PrivatePostgresql]:
    """A PostgreSQL that all tests share: each makes databases of its own there."""
    found = programs()
    if found is None:
        pytest.skip("PostgreSQL's initdb and pg_ctl are not installed here (Debian: apt-get install postgresql)")
    server = PrivatePostgresql(found)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with this release's tables and nothing in them: migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("migrated") / "service.db"
    Database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def database_url(migrated_file: Path, tmp_path: Path) -> str:
    """A fresh database."""
    return copied(migrated_file, tmp_path)


def quick_settings(database_url: str, **changes: Any) -> Settings:
    """Settings with quick looks."""
    values: dict[str, Any] = {
        "database_url": database_url,
        "planner": "fake_planner:FakePlanner",
        "workers": 0,
        "poll_s": 0.05,
        "lease_s": 5.0,
    }
    return Settings(**{**values, **changes})


@pytest.fixture
def make_settings(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """Settings for a fresh database of this test."""
    # Worker processes must find the fake planner.
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    return functools.partial(quick_settings, database_url)


@pytest.fixture
def app(make_settings: Callable[..., Settings]) -> FastAPI:
    """The app without workers."""
    return create_app(make_settings(max_body_bytes=200_000))


@pytest.fixture
async def http(app: FastAPI) -> Any:
    """An HTTP client of the app, in this process. Bugs show as 500, as they would on a wire."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


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


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A real service with one worker, shared by a file's tests: their problems must have names of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        service = RunningService(
            quick_settings(f"sqlite:///{tmp_path_factory.mktemp('live')}/service.db", port=0, workers=1)
        )
        yield service
        service.stop()


@pytest.fixture
def client(live: RunningService) -> Iterator[Client]:
    """A client of the real service."""
    with Client(live.url) as client:
        yield client


@pytest.fixture
def worker(app: FastAPI, caplog: pytest.LogCaptureFixture) -> Worker:
    """A worker on the database of ``app``, to be driven one job at a time; its jobs are threads of this process."""
    caplog.set_level("INFO", "loadmaster")
    return Worker(app.state.service.settings, launch=ThreadJob)


@pytest.fixture
def process_worker(app: FastAPI) -> Worker:
    """Like ``worker``, each job in a process of its own, as outside the tests: for those that crash."""
    return Worker(app.state.service.settings)
