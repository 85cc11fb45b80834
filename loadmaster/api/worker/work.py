"""The life of a worker's process: the engine it was told to use, several jobs at once on other machines, its end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api import telemetry
from loadmaster.api.settings import Settings
from loadmaster.api.store.database import DatabaseAwayError, log_error
from loadmaster.api.store.records import Job
from loadmaster.api.worker import on_ray
from loadmaster.api.worker.process import Launcher
from loadmaster.api.worker.worker import Worker

__all__ = ["Crew", "expect_engine", "work"]

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LOOK_EVERY_S = 1.0, 30.0, 0.1


class Crew(Worker):
    """A :class:`Worker` for jobs that run on other machines, each followed by a thread of its own. It takes a job
    whenever fewer than ``places()`` are under way, asked before each claim. An error of it ends the worker, and its
    jobs go back unharmed."""

    def __init__(
        self, settings: Settings, *, launch: Launcher, places: Callable[[], int], worker_id: str | None = None
    ) -> None:
        super().__init__(settings, worker_id=worker_id, launch=launch)
        self._places = places
        self._under_way: list[threading.Thread] = []

    def work_once(self) -> bool:
        """Take a job; False if none waits, or there is no place for it."""
        self._under_way = [thread for thread in self._under_way if thread.is_alive()]
        return len(self._under_way) < self._places() and super().work_once()

    def bring_to_end(self, job: Job) -> None:
        thread = threading.Thread(target=self._follow_alone, args=(job,), name=job.id)
        self._under_way.append(thread)
        thread.start()

    def close(self) -> None:
        self.stop()
        for thread in self._under_way:
            thread.join()
        super().close()

    def _follow_alone(self, job: Job) -> None:
        try:
            super().bring_to_end(job)
        except SQLAlchemyError as error:
            log_error(logger, f"the lease of job {job.id} will expire", error)


def expect_engine(settings: Settings) -> None:
    """Check that the engine is installed. Raises MissingExtraError if it is missing."""
    if settings.engine == "ray":
        on_ray.expect_ray()


def work(settings: Settings, *, worker_id: str | None = None, parent_pid: int | None = None) -> None:
    """Run a worker in this process until SIGTERM or SIGINT, or until its parent ends; its jobs then go back. A database
    server that does not answer yet is waited for. Raises MissingExtraError if the engine is not installed, InputError
    if it finds no cluster."""
    telemetry.configure()
    life = _Life(parent_pid)
    life.heed_signals()
    worker = _worker_when_it_can(settings, worker_id, life)
    if worker is None:
        return
    # After the engine, which has its own idea of these signals.
    life.heed_signals()
    life.worker = worker
    if life.is_over:
        worker.stop()
    if parent_pid is not None:
        threading.Thread(target=_watch_parent, args=(worker, parent_pid), daemon=True).start()
    worker.run()


class _Life:
    """The end of a worker's process: it is told so, or its parent has ended. A plain flag: see :meth:`Worker.stop`."""

    def __init__(self, parent_pid: int | None) -> None:
        self._parent_pid = parent_pid
        self._is_told = False
        self.worker: Worker | None = None

    def heed_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())

    @property
    def is_over(self) -> bool:
        return self._is_told or (self._parent_pid is not None and os.getppid() != self._parent_pid)

    def _end(self) -> None:
        self._is_told = True
        if self.worker is not None:
            self.worker.stop()


def _worker_when_it_can(settings: Settings, worker_id: str | None, life: _Life) -> Worker | None:
    """The worker, as soon as its database lets it in; None: it is to end before that."""
    pause_s = _FIRST_PAUSE_S
    while not life.is_over:
        try:
            return _worker(settings, worker_id)
        except DatabaseAwayError as error:
            logger.warning("waiting for the database, next try in %g s: %s", pause_s, error)
        again_at = time.monotonic() + pause_s
        while time.monotonic() < again_at and not life.is_over:
            time.sleep(_LOOK_EVERY_S)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return None


def _worker(settings: Settings, worker_id: str | None) -> Worker:
    if settings.engine == "ray":
        on_ray.connect()
        return Crew(settings, launch=on_ray.RayJob, places=on_ray.places, worker_id=worker_id)
    return Worker(settings, worker_id=worker_id)


def _watch_parent(worker: Worker, parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_EVERY_S)
    worker.stop()
