"""A real service for tests, and how to wait for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from loadmaster.api.serve import make_server
from loadmaster.api.settings import Settings

# What has not come by then never will, on the slowest machine.
HANG_S = 240.0


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


def wait_until(holds: Callable[[], Any], timeout_s: float = HANG_S) -> Any:
    """Wait for something that comes by itself; returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def pids(marker: Path) -> list[int]:
    """Job processes that have started on a problem with that marker."""
    return [int(line) for line in marker.read_text().split()] if marker.exists() else []


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return status(pid)[0] not in ("", "Z")


def parent(pid: int) -> int:
    """The parent of a process (of a job's process, that is the worker); 0 if there is no such process."""
    return int(status(pid)[1])


def status(pid: int) -> tuple[str, str]:
    """State and parent of a process, as the kernel tells them."""
    try:
        state, above, *_ = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", "0"
    return state, above
