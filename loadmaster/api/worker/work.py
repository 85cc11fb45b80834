"""The life of a worker's process: the engine it was told to use, and when it ends."""

from __future__ import annotations

import os
import signal
import threading
import time

from loadmaster.api import telemetry
from loadmaster.api.settings import Settings
from loadmaster.api.worker import on_ray
from loadmaster.api.worker.crew import Crew
from loadmaster.api.worker.worker import Worker

__all__ = ["expect_engine", "work"]

_WATCH_EVERY_S = 0.5


def expect_engine(settings: Settings) -> None:
    """See that the engine is installed.

    Raises:
        MissingExtraError: it is not.
    """
    if settings.engine == "ray":
        on_ray.expect_ray()


def work(settings: Settings, *, worker_id: str | None = None, parent_pid: int | None = None) -> None:
    """Run a worker in this process until SIGTERM or SIGINT, or until its parent ends; its jobs then go back.

    Raises:
        MissingExtraError: the engine is not installed.
        InputError: the engine finds no cluster.
    """
    telemetry.configure()
    worker = _worker(settings, worker_id)
    # After the engine, which has its own idea of these signals.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    if parent_pid is not None:
        threading.Thread(target=_watch_parent, args=(worker, parent_pid), daemon=True).start()
    worker.run()


def _worker(settings: Settings, worker_id: str | None) -> Worker:
    if settings.engine == "ray":
        on_ray.connect()
        return Crew(settings, launch=on_ray.RayJob, places=on_ray.places, worker_id=worker_id)
    return Worker(settings, worker_id=worker_id)


def _watch_parent(worker: Worker, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY_S)
    worker.stop()
