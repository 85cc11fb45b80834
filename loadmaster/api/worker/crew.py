"""A worker with several jobs under way, each followed by a thread of its own: for jobs that run on other machines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from loadmaster.api.settings import Settings
from loadmaster.api.store.database import log_error
from loadmaster.api.store.records import Job
from loadmaster.api.worker.process import Launcher
from loadmaster.api.worker.worker import Worker

__all__ = ["Crew"]

logger = logging.getLogger(__name__)


class Crew(Worker):
    """A :class:`Worker` that takes a job whenever fewer than ``places()`` are under way, asked before each claim. An
    error of it ends the worker, and its jobs go back unharmed."""

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
